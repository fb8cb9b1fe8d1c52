"""From a run to a connection: the tunnel to its head, and the key that the tokens come from."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudrl.errors import ConnectionFailed
from cloudrl.node.tokens import derive
from cloudrl.providers.dstack import route
from cloudrl.spec.ports import AGENT_PORT, RAY_PORT
from cloudrl.transport import Connection, ssh, tunnel_daemon
from cloudrl.transport.tunnel import Tunnel, free_ports, listens

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cloudrl.providers.dstack.runs import RunState
    from cloudrl.providers.dstack.server import Server

_HEALING_S, _LOOK_S = 15.0, 0.2
# node/tokens.py: node_key. A single node has no dstack_job; the agent keeps a key of its own.
_KEY_OF_RUN, _KEY_OF_NODE = "~/.ssh/dstack_job", "~/.cloudrl/run/key"


@dataclass(frozen=True)
class Access:
    """A way into a running cluster. `tunnel` is None when another process keeps it open."""

    connection: Connection
    tunnel: Tunnel | None

    def close(self) -> None:
        """Close the tunnel if it is ours."""
        if self.tunnel is not None:
            self.tunnel.close()


def open_access(server: Server, run: RunState, *, timeout_s: float = 60.0) -> Access:
    """Open the way to a run's head, or take the one that is kept open.

    Raises:
        ConnectionFailed: the head cannot be reached through SSH, or has no key yet.
    """
    finder = route.RunRoute(server, run)
    kept = tunnel_daemon.read_state(route.tunnel_folder(server, run.name))
    if kept is not None and kept.target == run.id:
        _wait_open(kept.ports, min(timeout_s, _HEALING_S))
        return Access(RunTokenSource(finder, kept.ports).read(), None)
    tunnel = Tunnel(finder.find, free_ports((RAY_PORT, AGENT_PORT)), server.folder(run.name))
    tunnel.open(timeout_s)
    try:
        return Access(RunTokenSource(finder, tunnel.ports).read(), tunnel)
    except BaseException:
        tunnel.close()
        raise


class AccessPoller:
    """One access to a run, opened once and used until it is closed.

    Args:
        server: the run's.
        try_s: how long one attempt to open it may take.
        give_up_s: how long a run may be running and not be reached.
        opener: opens the way.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        server: Server,
        *,
        try_s: float = 20.0,
        give_up_s: float = float("inf"),
        opener: Callable[..., Access] = open_access,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.problem = ""
        """Why there is none although the run is running."""
        self._server, self._opener, self._clock = server, opener, clock
        self._try_s, self._give_up_s = try_s, give_up_s
        self._access: Access | None = None
        self._run_id = ""
        self._running: tuple[int, float] | None = None

    def poll(self, run: RunState) -> Access | None:
        """The way in, or None while the agent has not started. A new run of the name is another cluster.

        Raises:
            ConnectionFailed: this attempt of the run has been running for long, and cannot be reached.
        """
        if run.id != self._run_id:
            self.close()
            self._run_id = run.id
        if run.status != "running":
            self._running = None
            return None
        if self._access is not None:
            return self._access
        if self._running is None or self._running[0] != run.attempt:
            self._running = (run.attempt, self._clock())
        try:
            self._access = self._opener(self._server, run, timeout_s=self._try_s)
        except ConnectionFailed as error:
            self.problem = error.message
            if self._clock() - self._running[1] > self._give_up_s:
                raise self._unreachable(run, error) from error
        return self._access

    def release(self) -> Access:
        """Give the access away; `close` then leaves it alone.

        Raises:
            ConnectionFailed: there is none.
        """
        access, self._access = self._access, None
        if access is None:
            raise ConnectionFailed(self.problem or "no way in")
        return access

    def close(self) -> None:
        """Close what was opened and not handed over."""
        if self._access is not None:
            self._access.close()
            self._access = None

    def _unreachable(self, run: RunState, error: ConnectionFailed) -> ConnectionFailed:
        return type(error)(
            f"cluster {run.name!r} is running, and cannot be reached from this machine: {error.message}",
            hint=error.hint or f"Try again: cloudrl attach {run.name}",
        )


def _wait_open(ports: Mapping[int, int], timeout_s: float) -> None:
    """A tunnel that has just broken is being opened again; who comes after that need not know."""
    deadline = time.monotonic() + timeout_s
    while not all(listens(port) for port in ports.values()) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


class RunTokenSource:
    """Reads a run's tokens again after dstack has resubmitted it (`cloudrl.transport.TokenSource`)."""

    def __init__(self, run_route: route.RunRoute, ports: Mapping[int, int]) -> None:
        self._route, self._ports = run_route, dict(ports)
        self._lock = threading.Lock()
        self._latest: Connection | None = None

    def read(self) -> Connection:
        """The connection with the tokens of the run's present attempt; each has a new key on its head.

        Raises:
            ConnectionFailed: the key cannot be read.
        """
        run = self._route.run
        tokens = derive(read_key(self._route.server, run))
        self._latest = Connection(
            name=run.name,
            ray_url=f"http://127.0.0.1:{self._ports[RAY_PORT]}",
            ray_token=tokens.ray,
            agent_url=f"http://127.0.0.1:{self._ports[AGENT_PORT]}",
            agent_token=tokens.agent,
            cluster_id=run.id,
            token_source=self,
        )
        return self._latest

    def refresh(self, refused: str) -> Connection:
        """See `TokenSource.refresh`; the key is read once for each refused token, whoever asks."""
        with self._lock:
            latest = self._latest
            if latest is not None and refused not in (latest.ray_token, latest.agent_token):
                return latest
            self._route.look()
            return self.read()

    def ensure_alive(self) -> None:
        """See `TokenSource.ensure_alive`."""
        self._route.ensure_alive()


def read_key(server: Server, run: RunState) -> bytes:
    """The key of a run's present attempt, from its head.

    Raises:
        ConnectionFailed: SSH fails, or there is no key: then the agent has not started.
    """
    path = _KEY_OF_RUN if len(run.nodes) > 1 else _KEY_OF_NODE
    head, folder = route.route(server, run), server.folder(run.name)
    key = ssh.run(head, folder, ["cat", path])
    if not key.strip():
        raise ConnectionFailed(
            f"the head of {run.name!r} has an empty {path}", hint=f"cloudrl status {run.name}"
        )
    return key
