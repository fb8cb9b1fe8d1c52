"""Watches the kernel's counters of processes that it has ended for lack of memory.

A process that the OOM killer ends has no last words, and Ray only sees that it is gone. The counters are those of
Linux: `oom_kill` of memory.events (Documentation/admin-guide/cgroup-v2.rst), of memory.oom_control
(admin-guide/cgroup-v1/memory.rst), and of /proc/vmstat for the whole machine.
"""

import time
from pathlib import Path
from typing import Callable, Iterator, Optional

from cloudrl.control_groups import own_groups
from cloudrl.node.background import repeat
from cloudrl.node.node_state import NodeState
from cloudrl.protocol.oom_kills import OomKills

EVERY_S = 2.0


class OomWatch:
    """Compares the counter with its value at the start.

    Args:
        root: where `proc` and `sys` are.
        now: seconds since the epoch.
    """

    def __init__(self, root: Path = Path("/"), *, now: Callable[[], float] = time.time) -> None:
        self._root, self._now = root, now
        self._file = next((file for file in _counters(root) if _count(file) is not None), None)
        self._before = self._count()
        self._known = 0

    def look(self) -> Optional[OomKills]:
        """All kills since the start, if there are more than at the look before; else None."""
        count = self._count() - self._before
        if count <= self._known:
            return None
        self._known = count
        return OomKills(count, round(self._now(), 3))

    def _count(self) -> int:
        return (_count(self._file) or 0) if self._file is not None else 0


def start_watching(state: NodeState, log: Callable[[str], object]) -> None:
    """Keep this node's report up to date, and log each rise, in a thread."""
    watch = OomWatch()

    def look() -> None:
        kills = watch.look()
        if kills is not None:
            state.update(oom_kills=kills)
            log(kills.to_line())

    repeat(look, EVERY_S)


def _counters(root: Path) -> Iterator[Path]:
    """Files that may have the counter, those of the smallest group of processes first."""
    for group in own_groups("memory", root):
        yield group / "memory.events"
        yield group / "memory.oom_control"
    yield root / "proc/vmstat"


def _count(file: Path) -> Optional[int]:
    """None where the file or the counter is missing."""
    try:
        rows = [line.split() for line in file.read_text().splitlines()]
        return next((int(row[1]) for row in rows if len(row) == 2 and row[0] == "oom_kill"), None)
    except (OSError, ValueError):
        return None
