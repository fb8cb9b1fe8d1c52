"""How far a long transfer is."""

from __future__ import annotations

import threading
from typing import Protocol


class OnProgress(Protocol):
    """Called now and then from one thread at a time, and once at the end with `done_bytes == total_bytes`."""

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        """Bytes of the shards that were read and dealt with so far, and all of them."""


def silent(done_bytes: int, total_bytes: int) -> None:
    """Tell nobody."""


class Meter:
    """Adds up what several threads have done.

    Args:
        total_bytes: What there is to do.
        on_progress: Told after each addition.
    """

    def __init__(self, total_bytes: int, on_progress: OnProgress) -> None:
        self._total, self._on_progress = total_bytes, on_progress
        self._done = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """So many bytes more; the end is told by `finish` alone."""
        with self._lock:
            self._done += count
            if self._done < self._total:
                self._on_progress(self._done, self._total)

    def finish(self) -> None:
        """All is done."""
        self._on_progress(self._total, self._total)
