"""How far a transfer is: bytes, rate and time left, on a line that is rewritten, or now and then a line."""

from __future__ import annotations

import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cloudrl.cli import _output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cloudrl.shards.progress import OnProgress

_WINDOW_S = 10.0
_SHOW_EVERY_S = 0.2
_WRITE_EVERY_S = 15.0


class Pace:
    """Rate over the last ten seconds, and what it says of the rest.

    Args:
        clock: Seconds that never run backwards.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque([(clock(), 0)])

    def describe(self, done_bytes: int, total_bytes: int) -> str:
        """For example `3.1 of 12.4 GB, 250 MB/s, 37 s left`; a rate is there once some time has passed."""
        from cloudrl.jobs.format import duration

        now = self._clock()
        self._seen.append((now, done_bytes))
        while len(self._seen) > 2 and self._seen[1][0] < now - _WINDOW_S:
            self._seen.popleft()
        since, before = self._seen[0]
        parts = [_of(done_bytes, total_bytes)]
        if now - since >= 0.5 and done_bytes > before:
            rate = (done_bytes - before) / (now - since)
            parts.append(f"{gigabytes(round(rate))}/s")
            if done_bytes < total_bytes:
                parts.append(f"{duration((total_bytes - done_bytes) / rate)} left")
        return ", ".join(parts)


@contextmanager
def bytes_shown(what: str) -> Iterator[OnProgress]:
    """Yields the function to call with bytes; `what` stands before them."""
    from cloudrl.cli._follow import StatusLine

    line, pace, shown = StatusLine(), Pace(), [0.0, time.monotonic()]
    over: set[int] = set()

    def show(done_bytes: int, total_bytes: int) -> None:
        now, ended = time.monotonic(), done_bytes >= total_bytes
        if done_bytes in over or (not ended and now - shown[0] < _SHOW_EVERY_S):
            return
        shown[0] = now
        over.update({done_bytes} if ended else ())
        text = f"{what}: {pace.describe(done_bytes, total_bytes)}"
        if _output.is_interactive():
            line.replace(text)
        elif ended or now - shown[1] >= _WRITE_EVERY_S:
            shown[1] = now
            _output.note(text)

    try:
        yield show
    finally:
        line.close()


def gigabytes(size_bytes: int) -> str:
    """A size for reading: `12.4 GB`, `250 MB`, `3.1 kB`, `17 B`."""
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size_bytes >= unit:
            return f"{_three_digits(size_bytes / unit)} {name}"
    return f"{size_bytes} B"


def _of(done: int, total: int) -> str:
    return gigabytes(total) if done >= total else f"{gigabytes(done)} of {gigabytes(total)}"


def _three_digits(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"
