"""When a line of a log was written. Most lines do not say; then the nearest one above does."""

import re
from collections.abc import Sequence
from datetime import datetime, timezone

_DATED = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[.,](\d{3})")
_LINES_ABOVE = 200


def stamped_ms(lines: Sequence[str], at: int) -> float | None:
    """Unix milliseconds of the line with that index; None where no line above it has a date.

    Logs have the local time of their node without its zone; containers run in UTC, and so it is read.
    """
    for line in reversed(lines[max(0, at - _LINES_ABOVE) : at + 1]):
        if (match := _DATED.search(line[:200])) is not None:
            try:
                moment = datetime.fromisoformat(f"{match[1]}T{match[2]}.{match[3]}").replace(tzinfo=timezone.utc)
            except ValueError:
                continue
            return moment.timestamp() * 1000
    return None
