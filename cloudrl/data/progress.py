"""Lines that say how far a data set is, not too many of them. Standard library only."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Callable, Iterable, Iterator, Mapping, Tuple, TypeVar

    Row = TypeVar("Row")


def silent(_: str) -> None:
    """Say nothing."""


def counted(
    name: str,
    rows: Iterable[Tuple[str, Row]],
    say: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    every_s: float = 2.0,
) -> Iterator[Tuple[str, Row]]:
    """The same (split, row) pairs; every few seconds it says how many there were and how fast they come."""
    counts: Counter[str] = Counter()
    started_at = said_at = clock()
    for split, row in rows:
        counts[split] += 1
        now = clock()
        if now - said_at >= every_s:
            said_at = now
            say(f"{name}: {_shown(counts)}, {sum(counts.values()) / max(now - started_at, 1e-9):,.0f} rows/s")
        yield split, row
    say(f"{name}: {_shown(counts)} in {clock() - started_at:.1f} s")


def _shown(counts: Mapping[str, int]) -> str:
    return " and ".join(f"{rows:,} {split}" for split, rows in counts.items()) + " rows"
