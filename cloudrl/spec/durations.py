"""Durations: `30m`, `1d`, or a number of seconds."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from cloudrl.errors import SpecError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"([0-9]+) *([smhdw])?")
_NEARLY = re.compile(r"([0-9]+) *([smhdw])[a-z]*", re.IGNORECASE)  # `30min`, `2 days`
_EXAMPLES = "For example '30m', '2h' or '1d'"


@dataclass(frozen=True, order=True)
class Duration:
    """An amount of time. `24h` equals `1d`."""

    seconds: int
    text: str = field(compare=False, default="")

    @classmethod
    def parse(cls, value: object) -> Duration:
        """Read `30m`, `2 h`, or a number of seconds.

        Raises:
            SpecError: `value` is no duration.
        """
        if isinstance(value, Duration):
            return value
        written = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        match = _DURATION.fullmatch(written) if isinstance(written, str) else None
        if match is None:
            near = _NEARLY.fullmatch(written) if isinstance(written, str) else None
            meant = f"; did you mean '{near[1]}{near[2].lower()}'?" if near else ""
            raise SpecError(f"{value!r} is not a duration{meant}", hint=_EXAMPLES)
        number, unit = match[1], match[2] or "s"
        return cls(int(number) * _SECONDS[unit], f"{number}{unit}")

    def __str__(self) -> str:
        return self.text or f"{self.seconds}s"


def some_time(value: object) -> str:
    """A duration above zero, in its usual spelling."""
    parsed = Duration.parse(value)
    if parsed.seconds == 0:
        raise SpecError(f"{value!r} is no time at all", hint=_EXAMPLES)
    return str(parsed)
