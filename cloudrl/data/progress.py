"""Lines that say how far a data set is, not too many of them. Standard library only."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Callable, Iterable, Iterator, Tuple, TypeVar

    Row = TypeVar("Row")


def silent(_: str) -> None:
    """Say nothing."""


class Progress:
    """Counts rows as they pass; every few seconds it says how many there were, and how fast they come."""

    def __init__(
        self,
        name: str,
        say: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        every_s: float = 2.0,
    ) -> None:
        self._name, self._say, self._clock, self._every_s = name, say, clock, every_s
        self._rows: Counter[str] = Counter()
        self._started_at = self._said_at = clock()

    def of(self, rows: Iterable[Tuple[str, Row]]) -> Iterator[Tuple[str, Row]]:
        """The same (split, row) pairs."""
        for split, row in rows:
            self._rows[split] += 1
            now = self._clock()
            if now - self._said_at >= self._every_s:
                self._said_at = now
                self._say(f"{self._name}: {self._counts()}, {self._rate(now):,.0f} rows/s")
            yield split, row

    def done(self) -> None:
        """Say the end."""
        seconds = self._clock() - self._started_at
        self._say(f"{self._name}: {self._counts()} in {seconds:.1f} s")

    def _counts(self) -> str:
        return " and ".join(f"{rows:,} {split}" for split, rows in self._rows.items()) + " rows"

    def _rate(self, now: float) -> float:
        return sum(self._rows.values()) / max(now - self._started_at, 1e-9)
