"""The process that keeps a tunnel open with no terminal (`start` has its command line).

It ends when the target is gone for good, or by SIGTERM (`stop`); its ssh ends with it. Its folder holds `log`, and
`tunnel.json`, which it has locked for all its life and which is empty until the tunnel is there.
"""

import fcntl
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import IO, Protocol

from cloudrl.errors import CloudrlError, ConnectionFailed
from cloudrl.foreign import NOT_AS_EXPECTED, parse_object, read_file, text_of
from cloudrl.private_files import make_folder, open_file
from cloudrl.transport.ssh import Route
from cloudrl.transport.tunnel import Tunnel

_FILE = "tunnel.json"
_OPEN_S = 60.0
_LOCK_S = 2.0
_LOG_BYTES = 1 << 20


class RouteFinder(Protocol):
    """Knows where a tunnel leads, and how to get there."""

    target: str
    """The id of what it leads to; a tunnel to another one is not the same."""
    ask_every_s: float
    """So often a tunnel that is open asks whether the target is gone."""

    def find(self) -> Route:
        """The present way.

        Raises:
            ConnectionFailed: no tunnel at present.
            ClusterFailed: there will never be one again.
        """

    def ensure_alive(self) -> None:
        """Return unless the target is gone for good.

        Raises:
            ClusterFailed: it is.
        """


@dataclass(frozen=True)
class TunnelState:
    """A tunnel that another process keeps open.

    Attributes:
        pid: of that process.
        target: where it leads, see `RouteFinder`.
        ports: port there -> port on this machine.
    """

    pid: int
    target: str
    ports: Mapping[int, int]


def read_state(folder: Path) -> TunnelState | None:
    """The tunnel that is kept open there; None while it is opening, and when its daemon is gone, however it ended."""
    if not (folder / _FILE).exists() or not is_locked(folder):
        return None
    try:
        state = parse_object(read_file(folder / _FILE))
        ports = {int(remote): int(local) for remote, local in state["ports"].items()}
        return TunnelState(int(state["pid"]), text_of(state, "target"), ports)
    except NOT_AS_EXPECTED:  # nothing, or not all of it, is there yet
        return None


def acquire_lock(folder: Path, timeout_s: float = 0.0) -> IO[str] | None:
    """Take the daemon's lock for the life of the returned file; None when another process has it all the while.

    Clears what an earlier daemon left in the file.
    """
    make_folder(folder)
    file = open(folder / _FILE, "a", encoding="utf-8", opener=open_file)  # noqa: SIM115  it is returned open
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                file.close()
                return None
            time.sleep(0.05)
        else:
            file.truncate(0)
            return file


def is_locked(folder: Path) -> bool:
    """Whether another process has the lock."""
    lock = acquire_lock(folder)
    if lock is not None:
        lock.close()
    return lock is None


def start(
    folder: Path,
    name: str,
    target: str,
    finder: str,
    arguments: Sequence[str],
    ports: Sequence[int],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> TunnelState:
    """Start a daemon, or find the one that is there or opening. One that leads elsewhere is ended.

    Args:
        folder: for its files.
        name: of the cluster, for messages.
        target: where it has to lead, see `RouteFinder`.
        finder: what makes its `RouteFinder`, as `package.module:name`; the daemon imports it.
        arguments: for that.
        ports: ports there; the same numbers are taken here where they are free.
        clock: seconds that never run backwards.
        sleep: waits that many seconds.

    Raises:
        ConnectionFailed: it could not open the tunnel.
    """
    state = read_state(folder)
    if state is not None and state.target == target:
        return state
    stop(folder)  # to an earlier cluster of the name
    make_folder(folder)
    with open(folder / "log", "ab", opener=open_file) as log:  # another daemon may be writing there
        before = log.tell()
        words = [sys.executable, "-m", __name__, str(folder), ",".join(map(str, ports)), finder, *arguments]
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, close_fds=True
        )
    deadline = clock() + _OPEN_S + 10
    while (state := read_state(folder)) is None:
        status = process.poll()
        gave_way = status == 0 and is_locked(folder)  # to another daemon, which is opening the tunnel
        if clock() > deadline or not (status is None or gave_way):
            process.terminate()
            lines = _log_since(folder, before).decode("utf-8", "replace").strip().splitlines()
            raise ConnectionFailed(
                f"the tunnel to {name!r} did not open: {lines[-1] if lines else 'no reason given'}",
                hint=f"cloudrl status {name}",
            )
        sleep(0.1)
    if state.target != target:  # of one that was opening all the while
        raise ConnectionFailed(
            f"the tunnel to {name!r} leads to an earlier cluster of that name", hint=f"cloudrl detach {name}"
        )
    return state


def _log_since(folder: Path, offset: int) -> bytes:
    with (folder / "log").open("rb") as log:
        log.seek(offset)
        return log.read(_LOG_BYTES)


def stop(folder: Path) -> bool:
    """End the daemon, and return once its lock is free for another; False if no daemon runs."""
    state = read_state(folder)
    if state is None:
        return False
    with suppress(ProcessLookupError, PermissionError):  # it has ended since, and the pid may be another's
        os.kill(state.pid, signal.SIGTERM)  # it holds the lock, so the pid is its own
    deadline = time.monotonic() + 20
    while is_locked(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    return True


def main(folder: Path, ports: str, finder: str, *arguments: str) -> int:
    """Keep a tunnel open until its target is gone or SIGTERM comes."""
    lock = acquire_lock(folder, _LOCK_S)  # whoever looks for a daemon has it for a moment (`read_state`)
    if lock is None:
        return 0
    stops: queue.SimpleQueue[None] = queue.SimpleQueue()  # for a signal's handler: see node/shutdown.py
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stops.put(None))
    module, _, name = finder.partition(":")
    make_finder: Callable[..., RouteFinder] = attrgetter(name)(importlib.import_module(module))
    try:
        target = make_finder(*arguments)
        tunnel = Tunnel(target.find, [int(port) for port in ports.split(",")], folder)
        try:
            tunnel.open(_OPEN_S)
            json.dump(asdict(TunnelState(os.getpid(), target.target, tunnel.ports)), lock)
            lock.flush()
            while True:
                with suppress(queue.Empty):
                    stops.get(timeout=target.ask_every_s)
                    return 0
                target.ensure_alive()
        finally:
            lock.truncate(0)
            tunnel.close()
    except CloudrlError as error:
        sys.stderr.write(f"{error.message}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
