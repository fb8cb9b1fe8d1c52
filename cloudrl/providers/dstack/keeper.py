"""The process that keeps a tunnel open with no terminal: `python -m cloudrl.providers.dstack.keeper PROJECT NAME`.

It ends when the run is over, or by SIGTERM (`cloudrl detach`); its ssh ends with it.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from cloudrl.errors import CloudrlError, ConnectionFailed, InputError
from cloudrl.providers.dstack import runs, state
from cloudrl.providers.dstack.access import open_tunnel
from cloudrl.providers.dstack.server import connect
from cloudrl.spec.ports import AGENT_PORT, RAY_PORT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from cloudrl.providers.dstack.server import Server
    from cloudrl.providers.dstack.state import Kept

_ASK_S = 10.0
_OPEN_S = 60.0
_HOLD_S = 2.0


def _launch(words: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, close_fds=True
    )


def start(
    project: str,
    name: str,
    *,
    launch: Callable[[Sequence[str], IO[bytes]], subprocess.Popen[bytes]] = _launch,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Kept:
    """Start a keeper, or find the one that is there or opening, and return its ports.

    Raises:
        ConnectionFailed: it could not open the tunnel.
    """
    place = state.folder(project, name) / "tunnel"
    kept = state.read_kept(place)
    if kept is not None:
        return kept
    place.mkdir(parents=True, exist_ok=True)
    with (place / "log").open("ab") as log:  # another keeper may be writing there
        before = log.tell()
        process = launch([sys.executable, "-m", "cloudrl.providers.dstack.keeper", project, name], log)
    deadline = clock() + _OPEN_S + 10
    while (kept := state.read_kept(place)) is None:
        if clock() > deadline or not _may_open(process, place):
            process.terminate()
            raise ConnectionFailed(
                f"the tunnel to {name!r} did not open: {_last_line(place / 'log', before)}",
                hint=f"cloudrl status {name}",
            )
        sleep(0.1)
    return kept


def _may_open(process: subprocess.Popen[bytes], place: Path) -> bool:
    """Whether a tunnel may be there soon: through this keeper, or the one that it has given way to."""
    status = process.poll()
    return status is None or (status == 0 and state.is_held(place))


def _last_line(log: Path, start: int) -> str:
    """The last thing that was said since `start`."""
    said = log.read_bytes()[start:].decode("utf-8", "replace").strip().splitlines()
    return said[-1] if said else "no reason given"


def stop(project: str, name: str) -> bool:
    """End the keeper of a cluster; False when there is none."""
    place = state.folder(project, name) / "tunnel"
    kept = state.read_kept(place)
    if kept is None:
        return False
    with suppress(ProcessLookupError, PermissionError):  # it has ended since, and the pid may be another's
        os.kill(kept.pid, signal.SIGTERM)  # it holds the lock, so the pid is its own
    deadline = time.monotonic() + 20
    while state.read_kept(place) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    return True


def main(project: str, name: str) -> int:
    """Keep the tunnel of one cluster open until its run is over or SIGTERM comes."""
    place = state.folder(project, name) / "tunnel"
    lock = _hold_patiently(place)
    if lock is None:
        return 0
    stops: queue.SimpleQueue[None] = queue.SimpleQueue()  # for a signal's handler: see node/ending.py
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stops.put(None))
    try:
        _keep(project, name, place, stops)
    except CloudrlError as error:
        sys.stderr.write(f"{error.message}\n")
        return error.exit_code
    return 0


def _hold_patiently(
    place: Path,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> IO[str] | None:
    """The tunnel's lock; whoever looks for a keeper holds it for a moment (`state.read_kept`)."""
    deadline = clock() + _HOLD_S
    while (lock := state.hold(place)) is None and clock() < deadline:
        sleep(0.05)
    return lock


def _keep(project: str, name: str, place: Path, stops: queue.SimpleQueue[None]) -> None:
    server = connect(project)
    run = runs.get(server, name)
    tunnel = open_tunnel(server, run, place, timeout_s=_OPEN_S)
    try:
        ports = tunnel.ports
        state.write_kept(place, state.Kept(os.getpid(), run.id, ports[RAY_PORT], ports[AGENT_PORT]))
        while not _is_told_to_stop(stops):
            if _is_over(server, name, run.id):
                return
    finally:
        (place / "tunnel.json").unlink(missing_ok=True)
        tunnel.close()


def _is_told_to_stop(stops: queue.SimpleQueue[None]) -> bool:
    """Whether a signal comes within the time between two questions to the server."""
    try:
        stops.get(timeout=_ASK_S)
    except queue.Empty:
        return False
    return True


def _is_over(server: Server, name: str, run_id: str) -> bool:
    """Whether the run has ended for good; a server that does not answer says nothing about it."""
    try:
        look = runs.get(server, name)
    except ConnectionFailed:
        return False
    except InputError:
        return True
    return look.is_over or look.id != run_id


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
