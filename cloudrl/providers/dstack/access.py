"""From a run to a connection: the tunnel to its head, and the key that the tokens come from."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from cloudrl.errors import CloudrlError, ClusterFailed, ConnectionFailed
from cloudrl.node.tokens import derive
from cloudrl.providers.dstack import route, runs
from cloudrl.providers.dstack.diagnostics import exit_reason
from cloudrl.providers.dstack.runs import RunState
from cloudrl.providers.dstack.server import Server, connect
from cloudrl.spec.ports import AGENT_PORT, RAY_PORT
from cloudrl.transport import Connection, ssh, tunnel_daemon
from cloudrl.transport.ssh import Route
from cloudrl.transport.tunnel import Tunnel, free_ports, listens

_PORTS = (RAY_PORT, AGENT_PORT)
_REOPEN_S, _POLL_S = 15.0, 0.2
# node/tokens.py: node_key. A single node has no dstack_job; the agent keeps a key of its own.
_KEY_OF_RUN, _KEY_OF_NODE = "~/.ssh/dstack_job", "~/.cloudrl/run/key"

_KEY_BEGINS, _NODE_KEY_BYTES = b"-----BEGIN", 64


class RunAccess:
    """The way to a run's head, wherever dstack has put it, and its tokens.

    `cloudrl.transport` knows it as `tunnel_daemon.RouteFinder` and as `TokenSource`.
    """

    def __init__(self, server: Server, run: RunState) -> None:
        self.target = run.id
        self._server, self._run = server, run
        self._tunnel: Tunnel | None = None
        self._ports: Mapping[int, int] = {}
        self._lock = threading.Lock()
        self.connection: Connection
        """Once it is open."""

    @classmethod
    def of(cls, project: str, name: str) -> RunAccess:
        """That to the run of a name, for another process."""
        server = connect(project)
        return cls(server, runs.get(server, name))

    @property
    def is_kept_open(self) -> bool:
        """Whether another process keeps the tunnel open."""
        return self._tunnel is None

    def open(self, timeout_s: float) -> None:
        """Open a tunnel, or take the one that another process keeps open; then read the key.

        Raises:
            ConnectionFailed: the head cannot be reached through SSH, or has no key yet.
        """
        kept = tunnel_daemon.read_state(tunnel_folder(self._server, self._run.name))
        if kept is not None and kept.target == self.target:
            self._ports = kept.ports
            deadline = time.monotonic() + min(timeout_s, _REOPEN_S)
            # one that has just broken is being opened again; who comes after that need not know
            while not all(map(listens, kept.ports.values())) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        else:
            self._tunnel = Tunnel(self.find, free_ports(_PORTS), self._server.folder(self._run.name))
            self._tunnel.open(timeout_s)
            self._ports = self._tunnel.ports
        try:
            self.connection = self._connect()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the tunnel if it is ours."""
        if self._tunnel is not None:
            self._tunnel.close()

    def find(self) -> Route:
        """See `RouteFinder`; asks the server each time, as after a resubmission the head is elsewhere."""
        self.ensure_alive()
        return route.route(self._server, self._run)

    def ensure_alive(self) -> None:
        """See `RouteFinder` and `TokenSource`."""
        with suppress(ConnectionFailed):  # the server may be restarting; the machines do not care
            self._update()

    def refresh(self, refused: str) -> Connection:
        """See `TokenSource`; the key is read once for each refused token, whoever asks."""
        with self._lock:
            if refused in (self.connection.ray_token, self.connection.agent_token):
                self._update()
                self.connection = self._connect()
            return self.connection

    def _update(self) -> None:
        """Ask the server for the run as it is now.

        Raises:
            ClusterFailed: it is over for good.
            ConnectionFailed: the server does not answer.
        """
        name, run = self._run.name, runs.find(self._server, self._run.name)
        if run is None or run.id != self.target:
            how = "it is gone" if run is None else "another run has its name"
            raise ClusterFailed(f"cluster {name!r} is over: {how}", hint="cloudrl status")
        self._run = run
        if run.is_over:
            reason = ""
            with suppress(CloudrlError):  # the log may be gone; that it is over is worth more
                _, reason = exit_reason(self._server, run)
            how = f"{run.status} {reason or run.reason}".rstrip()
            raise ClusterFailed(f"cluster {name!r} is over: {how}", hint=f"cloudrl status {name}")

    def _connect(self) -> Connection:
        """With the tokens of the run's present attempt; each has a new key on its head."""
        run = self._run
        tokens = derive(self._read_key())
        return Connection(
            name=run.name,
            ray_url=f"http://127.0.0.1:{self._ports[RAY_PORT]}",
            ray_token=tokens.ray,
            agent_url=f"http://127.0.0.1:{self._ports[AGENT_PORT]}",
            agent_token=tokens.agent,
            cluster_id=run.id,
            token_source=self,
        )

    def _read_key(self) -> bytes:
        """The key of the run's present attempt, from its head; none while the agent has not started."""
        run = self._run
        path = _KEY_OF_RUN if len(run.nodes) > 1 else _KEY_OF_NODE
        output = ssh.run(route.route(self._server, run), self._server.folder(run.name), ["cat", path])
        # an image's ~/.bashrc may print something before it
        key = output[max(0, output.find(_KEY_BEGINS)) :] if len(run.nodes) > 1 else output[-_NODE_KEY_BYTES:]
        if not key.strip():
            raise ConnectionFailed(f"the head of {run.name!r} has an empty {path}", hint=f"cloudrl status {run.name}")
        return key


def open_access(server: Server, run: RunState, *, timeout_s: float = 60.0) -> RunAccess:
    """Open the way to a run's head; see `RunAccess.open`."""
    access = RunAccess(server, run)
    access.open(timeout_s)
    return access


def keep_tunnel(server: Server, name: str) -> None:
    """Keep the tunnel to a run's head open in the background until the run is over; one that is there is taken.

    Raises:
        ConnectionFailed: it could not be opened.
    """
    finder = f"{__name__}:RunAccess.of"
    tunnel_daemon.start(tunnel_folder(server, name), name, finder, (server.project, name), _PORTS)


def close_tunnel(server: Server, name: str) -> bool:
    """End the tunnel in the background; False when there is none."""
    return tunnel_daemon.stop(tunnel_folder(server, name))


def tunnel_folder(server: Server, name: str) -> Path:
    """Where the tunnel in the background has its files."""
    return server.folder(name) / "tunnel"
