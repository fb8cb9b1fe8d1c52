"""From a cluster on other machines to a connection: the tunnel to its head, and the key that the tokens come from."""

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cloudrl.errors import ConnectionFailed
from cloudrl.protocol.backoff import Backoff, retry
from cloudrl.protocol.report import ClusterStatus
from cloudrl.protocol.tokens import derive
from cloudrl.transport import tunnel_daemon
from cloudrl.transport.connection import Connection
from cloudrl.transport.ssh import Route
from cloudrl.transport.tunnel import REOPEN_S, Tunnel, is_open_in

_POLL_S = 0.2
_BROKEN = Backoff(longest_s=1.0, give_up_s=8.0)
"""For a tunnel that still listens and leads nowhere: ssh notices it within 6 s."""


class HeadAccess:
    """The way to a cluster's head, wherever that is now, and its tokens. A provider derives its own.

    `cloudrl.transport` knows it as `tunnel_daemon.RouteFinder` and as `TokenSource`.

    Args:
        name: the cluster's.
        target: its id.
        folder: for files of ssh.
        ports: on the head's loopback: Ray's dashboard, and the agent.
    """

    ask_every_s = 10.0

    def __init__(self, name: str, target: str, folder: Path, ports: Sequence[int]) -> None:
        self.name, self.target = name, target
        self._folder, self._remote_ports = folder, tuple(ports)
        self._tunnel: Tunnel | None = None
        self._ports: Mapping[int, int] = {}
        self._lock = threading.Lock()
        self.connection: Connection
        """Once it is open."""

    def update(self) -> None:
        """Ask whoever has the cluster for it as it is now.

        Raises:
            ClusterFailed: it is over for good.
            ConnectionFailed: the head does not answer.
        """
        raise NotImplementedError

    def route(self) -> Route:
        """The way to its head, as it was at the last `update`.

        Raises:
            ConnectionFailed: no route to the head at present.
        """
        raise NotImplementedError

    def read_key(self) -> bytes:
        """The key of its present attempt.

        Raises:
            ConnectionFailed: the head does not exist yet, or cannot be reached.
        """
        raise NotImplementedError

    @property
    def is_kept_open(self) -> bool:
        """Whether another process keeps the tunnel open."""
        return self._tunnel is None

    def open(self, timeout_s: float) -> None:
        """Open a tunnel, or take the one that another process keeps open; then read the key.

        Raises:
            ConnectionFailed: the head cannot be reached through SSH, or has no key yet.
        """
        folder = daemon_folder(self._folder)
        state = tunnel_daemon.read_state(folder)
        if state is not None and state.target == self.target:
            self._ports = state.ports
            deadline = time.monotonic() + min(timeout_s, REOPEN_S)
            # one that has just broken is being opened again; who comes after that need not know
            while not is_open_in(folder, state.ports.values()):
                if time.monotonic() > deadline:  # who listens there by now would get the tokens
                    raise ConnectionFailed(
                        f"the tunnel to {self.name!r} has broken, and is not open again yet",
                        hint=f"cloudrl status {self.name}\nIf its head is well: cloudrl detach {self.name}",
                    )
                time.sleep(_POLL_S)
        else:
            self._tunnel = Tunnel(self.find, self._remote_ports, self._folder)
        try:
            if self._tunnel is not None:
                self._tunnel.open(timeout_s)
                self._ports = self._tunnel.ports
            self.connection = self._connect()
        except BaseException:
            self.close()
            raise

    def status(self) -> ClusterStatus:
        """What the agent says; where another process keeps the tunnel open, also if that has just broken.

        Raises:
            ConnectionFailed: no agent answers, or that of another cluster, which has the machine by now.
        """
        agent = self.connection.agent(timeout_s=5)
        if agent is None:
            raise TypeError("a connection without an agent")
        status = retry(agent.status, _BROKEN) if self.is_kept_open else agent.status()
        if status.facts.id != self.target:
            raise ConnectionFailed(
                f"the tunnel to {self.name!r} leads to another cluster, {status.facts.name!r} ({status.facts.id})",
                hint=f"Reconnect: cloudrl detach {self.name}; cloudrl attach {self.name}",
            )
        return status

    def close(self) -> None:
        """Close the tunnel if it is ours."""
        if self._tunnel is not None:
            self._tunnel.close()

    def find(self) -> Route:
        """See `RouteFinder`; asks each time, as after a restart the head is elsewhere."""
        self.ensure_alive()
        return self.route()

    def ensure_alive(self) -> None:
        """See `RouteFinder` and `TokenSource`."""
        with suppress(ConnectionFailed):  # a server may be restarting; the machines do not care
            self.update()

    def refresh(self, refused: str) -> Connection:
        """See `TokenSource`; the key is read once for each refused token, whoever asks."""
        with self._lock:
            if refused in (self.connection.ray_token, self.connection.agent_token):
                self.update()
                self.connection = self._connect()
            return self.connection

    def _connect(self) -> Connection:
        """With the tokens of the cluster's present attempt."""
        tokens = derive(self.read_key())
        ray, agent = (f"http://127.0.0.1:{self._ports[port]}" for port in self._remote_ports)
        return Connection(
            name=self.name, ray_url=ray, ray_token=tokens.ray, agent_url=agent, agent_token=tokens.agent,
            cluster_id=self.target, token_source=self,
        )  # fmt: skip


def daemon_folder(folder: Path) -> Path:
    """Where the tunnel in the background has its files, for a cluster with such a folder."""
    return folder / "tunnel"
