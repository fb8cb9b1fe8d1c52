"""Command lines of processes, read without waiting for one that the kernel holds up.

The kernel reads `/proc/PID/cmdline` from the process's own memory, and waits while that memory is locked: by a thread
of it that is in state D, for example, in a page fault on a share that does not answer.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Dict, Iterable, Mapping, Set

READ_S = 1.0
_MOST_BYTES = 4096


class Titles:
    """What processes wrote into their command lines, newest first; Ray writes the running method there.

    Args:
        root: where `proc` is.
        read_s: how long one round of reading may take.
    """

    def __init__(self, root: Path, read_s: float = READ_S) -> None:
        self._root, self._read_s = root, read_s
        self._titles: Dict[int, str] = {}
        self._held: Set[int] = set()
        """Processes that a thread is still reading."""

    def read(self, pids: Iterable[int]) -> Mapping[int, str]:
        """The title of each process that has one. Returns within `read_s`.

        A process that cannot be read in time keeps the title that it had; it is read again once its reader is back.
        """
        held = set(self._held)  # a reader that comes back changes it meanwhile
        wanted = [pid for pid in pids if pid not in held]
        kept = {pid: self._titles[pid] for pid in held if pid in self._titles}
        titles: Dict[int, str] = {}
        current: Set[int] = set()
        thread = threading.Thread(target=self._read_all, args=(wanted, titles, current), daemon=True)
        thread.start()
        thread.join(self._read_s)
        if thread.is_alive():
            kept.update((pid, self._titles[pid]) for pid in wanted if pid in self._titles)
            self._held |= current
        self._titles = {**kept, **dict(titles)}
        return self._titles

    def _read_all(self, pids: Iterable[int], titles: Dict[int, str], current: Set[int]) -> None:
        for pid in pids:
            current.add(pid)
            with suppress(OSError):
                title = self._read(pid)
                if title:
                    titles[pid] = title
            current.clear()
            self._held.discard(pid)

    def _read(self, pid: int) -> str:
        path = self._root / "proc" / str(pid) / "cmdline"
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_BYTES).replace("\0", " ").strip()
