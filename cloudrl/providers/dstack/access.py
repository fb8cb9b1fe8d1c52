"""The way to a run's head, and the key that its tokens come from."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from cloudrl.errors import CloudrlError, ClusterFailed, ConnectionFailed
from cloudrl.providers.dstack import route, runs
from cloudrl.providers.dstack.diagnostics import exit_reason
from cloudrl.providers.dstack.runs import RunState
from cloudrl.providers.dstack.server import Server, connect
from cloudrl.spec.ports import AGENT_PORT, RAY_PORT
from cloudrl.transport import ssh, tunnel_daemon
from cloudrl.transport.head_access import HeadAccess, daemon_folder
from cloudrl.transport.ssh import Route

_PORTS = (RAY_PORT, AGENT_PORT)
# node/tokens.py: node_key. A single node has no dstack_job; the agent keeps a key of its own.
_KEY_OF_RUN, _KEY_OF_NODE = "~/.ssh/dstack_job", "~/.cloudrl/run/key"

_KEY_BEGINS, _NODE_KEY_BYTES = b"-----BEGIN", 64


class RunAccess(HeadAccess):
    """The way to a run's head, wherever dstack has put it, and its tokens."""

    def __init__(self, server: Server, run: RunState) -> None:
        super().__init__(run.name, run.id, server.folder(run.name), _PORTS)
        self._server, self._run = server, run

    @classmethod
    def of(cls, project: str, name: str) -> RunAccess:
        """That to the run of a name, for another process."""
        server = connect(project)
        return cls(server, runs.get(server, name))

    def route(self) -> Route:
        """See `HeadAccess`."""
        return route.route(self._server, self._run)

    def update(self) -> None:
        """See `HeadAccess`."""
        run = runs.find(self._server, self.name)
        if run is None or run.id != self.target:
            how = "it is gone" if run is None else "another run has its name"
            raise ClusterFailed(f"cluster {self.name!r} is over: {how}", hint="cloudrl status")
        self._run = run
        if run.is_over:
            reason = ""
            with suppress(CloudrlError):  # the log may be gone; that it is over is worth more
                _, reason = exit_reason(self._server, run)
            how = f"{run.status} {reason or run.reason}".rstrip()
            raise ClusterFailed(f"cluster {self.name!r} is over: {how}", hint=f"cloudrl status {self.name}")

    def read_key(self) -> bytes:
        """The key of the run's present attempt, from its head; none while the agent has not started."""
        path = _KEY_OF_RUN if len(self._run.nodes) > 1 else _KEY_OF_NODE
        output = ssh.run(self.route(), self._server.folder(self.name), ["cat", path])
        # an image's ~/.bashrc may print something before it
        key = output[max(0, output.find(_KEY_BEGINS)) :] if len(self._run.nodes) > 1 else output[-_NODE_KEY_BYTES:]
        if not key.strip():
            raise ConnectionFailed(f"the head of {self.name!r} has an empty {path}", hint=f"cloudrl status {self.name}")
        return key


def open_access(server: Server, run: RunState, *, timeout_s: float = 60.0) -> RunAccess:
    """Open the way to a run's head; see `HeadAccess.open`."""
    access = RunAccess(server, run)
    access.open(timeout_s)
    return access


def keep_tunnel(server: Server, run: RunState) -> None:
    """Keep the tunnel to a run's head open in the background until the run is over; one that is there is taken.

    Raises:
        ConnectionFailed: it could not be opened.
    """
    folder, finder = tunnel_folder(server, run.name), f"{__name__}:RunAccess.of"
    tunnel_daemon.start(folder, run.name, run.id, finder, (server.project, run.name), _PORTS)


def close_tunnel(server: Server, name: str) -> bool:
    """End the tunnel in the background; False if none is open."""
    return tunnel_daemon.stop(tunnel_folder(server, name))


def tunnel_folder(server: Server, name: str) -> Path:
    """Where the tunnel in the background has its files."""
    return daemon_folder(server.folder(name))
