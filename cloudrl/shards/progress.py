"""How far a long transfer is."""

import threading
from collections.abc import Callable

OnProgress = Callable[[int, int], object]
"""Called with the bytes that are done, and all of them: now and then, from one thread at a time, and once at the end
with the two equal."""


def silent(_done_bytes: int, _total_bytes: int) -> None:
    """Report nothing."""


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
        """So many bytes more; `finish` alone reports the end."""
        with self._lock:
            self._done += count
            if self._done < self._total:
                self._on_progress(self._done, self._total)

    def finish(self) -> None:
        """All is done."""
        self._on_progress(self._total, self._total)
