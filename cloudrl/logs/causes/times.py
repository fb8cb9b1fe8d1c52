"""When a line of a log was written. Most lines do not say; then the nearest one above does."""

import re
from collections.abc import Sequence
from datetime import datetime, timezone

_DATED = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[.,](\d{3})")
_LINES_ABOVE = 200


def stamp(line: str) -> float | None:
    """Seconds since the epoch that a line begins with, read as UTC; None where it has no date.

    Logs have the local time of their node without its zone; containers run in UTC.
    """
    if (match := _DATED.search(line[:200])) is None:
        return None
    try:
        return datetime.fromisoformat(f"{match[1]}T{match[2]}.{match[3]}").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


def times_ms(lines: Sequence[str], utc_offset_s: float = 0.0) -> tuple[float | None, ...]:
    """Unix milliseconds of each line; None where none of the 200 lines above it has a date.

    Args:
        lines: of one log.
        utc_offset_s: how far the clock is ahead of UTC by which they were written.
    """
    times, moment, dated_at = list[float | None](), None, 0
    for at, line in enumerate(lines):
        if (at_ms := stamp(line)) is not None:
            moment, dated_at = (at_ms - utc_offset_s) * 1000, at
        times.append(moment if at - dated_at <= _LINES_ABOVE else None)
    return tuple(times)
