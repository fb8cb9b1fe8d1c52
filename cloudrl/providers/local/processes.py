"""The processes of one local cluster, found by the id that each of them carries, never by name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cloudrl.errors import CloudrlError
from cloudrl.render.agent import AGENT_FILE

if TYPE_CHECKING:
    from collections.abc import Callable

MARK = "CLOUDRL_RUN_ID"


def of_cluster(cluster_id: str) -> set[int]:
    """Process ids that have `CLOUDRL_RUN_ID=<id>` in their environment."""
    mark = f"{MARK}={cluster_id}".encode()
    return {pid for pid in _all() if mark in _read(pid, "environ").split(b"\0") and _is_alive(pid)}


def agents(cluster_id: str) -> set[int]:
    """Those among them that are agents."""
    wanted = AGENT_FILE.encode()
    found = set()
    for pid in of_cluster(cluster_id):
        words = _read(pid, "cmdline").split(b"\0")
        if len(words) > 2 and words[1].endswith(wanted) and words[2] == b"run":
            found.add(pid)
    return found


def end(
    cluster_id: str,
    *,
    grace_s: float = 20.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """End all of them: the agents first, which end their own; what is left after `grace_s` is killed.

    Returns:
        Whether anything was running.

    Raises:
        CloudrlError: a process outlives SIGKILL for `grace_s`, as one does that waits for a dead disk.
    """
    if not of_cluster(cluster_id):
        return False
    for pid in agents(cluster_id):
        _send(pid, signal.SIGTERM)
    deadline = clock() + grace_s
    # without an agent nobody ends the rest: no use in waiting for it
    while agents(cluster_id) and clock() < deadline:
        sleep(0.05)
    deadline = clock() + grace_s
    while remaining := of_cluster(cluster_id):
        if clock() > deadline:
            pids = ", ".join(str(pid) for pid in sorted(remaining))
            raise CloudrlError(
                f"processes {pids} do not end; the kernel holds them, often for a disk that does not answer",
                hint=f"ps -o pid,stat,wchan,args {pids.replace(', ', ' ')}",
            )
        for pid in remaining:
            _send(pid, signal.SIGKILL)
        sleep(0.05)
    return True


def _all() -> list[int]:
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and entry.name != str(os.getpid())
    ]


def _read(pid: int, file: str) -> bytes:
    try:
        return Path("/proc", str(pid), file).read_bytes()
    except OSError:  # gone, or another user's
        return b""


def _is_alive(pid: int) -> bool:
    return _read(pid, "stat").rpartition(b")")[2].split()[:1] not in ([], [b"Z"])


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
