"""Forwarded ports that can be trusted: one ssh, watched, and opened again whenever it dies.

ssh's own keep-alives notice a dead link within 6 s; then ssh ends, and a new one is started
until the other side is back, along a new route when the node is elsewhere by then. The local ports stay the same, and
nothing of ours takes them meanwhile.
The ssh dies with the process that holds the tunnel, even by SIGKILL, so nothing is left that holds a port.
"""

import shlex
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from cloudrl.child_process import Child
from cloudrl.errors import CloudrlError, ClusterFailed, ConnectionFailed, Unauthorized
from cloudrl.transport import ssh
from cloudrl.transport.local_ports import hold_ports, listens
from cloudrl.transport.ssh import Route
from cloudrl.units import duration_text

_PORT_TAKEN = "Could not request local forwarding"
"""ssh's last words where somebody else has bound a port since it was chosen."""
_LOOK_S = 0.2
_READY = "ssh.ready"
REOPEN_S = 15.0
"""So long a command waits for a tunnel that has broken and is being opened again."""


class Tunnel:
    """Remote ports of a node's loopback, on this machine's loopback.

    Args:
        find_route: the present way to the node; `ConnectionFailed` while no route exists, `ClusterFailed` when there
            will never be one again, which ends the tunnel, `Unauthorized` when this user has none.
        remote_ports: the same numbers are taken here where they are free.
        folder: for the ssh_config and ssh's own messages.
    """

    def __init__(self, find_route: Callable[[], Route], remote_ports: Sequence[int], folder: Path) -> None:
        self._held = hold_ports(remote_ports)
        self._find_route, self._folder = find_route, folder
        self._ready, self._was_open = folder / _READY, False
        self._closed, self._worked_at = threading.Event(), time.monotonic()
        self._problem = CloudrlError("not tried yet")
        self._thread = threading.Thread(target=self._keep_open, name="cloudrl-tunnel", daemon=True)

    def open(self, timeout_s: float = 60.0) -> None:
        """Start, and return once the ports can be reached.

        Raises:
            ConnectionFailed: they cannot after `timeout_s`, or never will; the message has ssh's own last words.
        """
        self._thread.start()
        deadline = time.monotonic() + timeout_s
        while not self.is_open:
            is_late, problem = time.monotonic() > deadline, self._problem
            if is_late or isinstance(problem, (ClusterFailed, Unauthorized)):
                self.close()
                tried = f" after {duration_text(timeout_s)}" if is_late else ""
                raise ConnectionFailed(f"no tunnel{tried}: {problem.message}", hint=problem.hint)
            self._closed.wait(_LOOK_S)

    @property
    def ports(self) -> Mapping[int, int]:
        """Remote port -> local port; others until it is open for the first time, where somebody has taken one."""
        return self._held.numbers

    @property
    def is_open(self) -> bool:
        """Whether our ssh listens on every local port. The far side may be dead for some seconds more."""
        is_open = is_open_in(self._folder, self.ports.values())
        self._was_open |= is_open
        return is_open

    def close(self) -> None:
        """End it; returns when ssh has ended."""
        self._closed.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=15)
        self._held.close()

    def _keep_open(self) -> None:
        """The thread that starts each ssh, and therefore has to outlive it (see `Child`)."""
        while not self._closed.is_set():
            try:
                self._run_ssh(self._find_route())
            except CloudrlError as error:  # never along the old one: another run may have that machine now
                self._problem = error
                if isinstance(error, ClusterFailed):
                    return
            except Exception as error:  # noqa: BLE001  the thread is all there is; its end would have no reason
                self._problem = CloudrlError(f"{type(error).__name__}: {error}")
            self._closed.wait(pause_s(time.monotonic() - self._worked_at))

    def _run_ssh(self, route: Route) -> None:
        """One ssh, to its end."""
        there = {remote: route.ports.get(remote, remote) for remote in self.ports}
        forwards = [f"-L127.0.0.1:{local}:127.0.0.1:{there[remote]}" for remote, local in self.ports.items()]
        self._ready.unlink(missing_ok=True)
        # run once all ports are bound (OpenSSH 9.2, ssh.c: ssh_session2); another program may listen on one of them
        ready = f"LocalCommand=touch {shlex.quote(str(self._ready).replace('%', '%%'))}"
        words = route.command(self._folder, "-o", "PermitLocalCommand=yes", "-o", ready, "-N", *forwards, route.name)
        child = Child(words, log=self._folder / "ssh.log", env=ssh.environment())
        try:
            while not self._closed.is_set() and child.poll() is None:
                self._closed.wait(_LOOK_S)
                if self._ready.exists():
                    self._worked_at = time.monotonic()
            if not self._closed.is_set():
                self._problem = CloudrlError(ssh.last_words(child.tail()) or f"ssh ended with status {child.poll()}")
                if _PORT_TAKEN in self._problem.message and not self._was_open:
                    self._held.close()
                    self._held = hold_ports(list(self.ports))
        finally:
            child.end()
            self._ready.unlink(missing_ok=True)


def is_open_in(folder: Path, ports: Iterable[int]) -> bool:
    """Whether the ssh of the tunnel with that folder listens at these local ports, and no other program."""
    return (folder / _READY).exists() and all(map(listens, ports))


def pause_s(broken_s: float) -> float:
    """Seconds before ssh is tried again: one after a short break, and no host that has gone is asked each second.

    A command waits as long for a tunnel that is kept open (`HeadAccess.open`).
    """
    return min(REOPEN_S - 2.0, max(1.0, broken_s / 10))
