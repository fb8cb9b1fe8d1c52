"""Durations: `30m`, `1d`, or a number of seconds."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction

from cloudrl.errors import SpecError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"([0-9]+) *([smhdw])?")
# What people write for the same: `30min`, `1.5h`, `1h30m`, `2 days`.
_PART = r"([0-9]+(?:\.[0-9]+)?) *(s|m|h|d|w|sec|min|hr|second|minute|hour|day|week)s?"
_NEARLY = re.compile(rf"(?:{_PART} *)+", re.IGNORECASE)
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
            raise SpecError(f"{value!r} is not a duration{_nearest(written)}", hint=_EXAMPLES)
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


def _nearest(written: object) -> str:
    if not isinstance(written, str) or not _NEARLY.fullmatch(written.strip()):
        return ""
    parts = re.findall(_PART, written, re.IGNORECASE)
    seconds = sum(Fraction(number) * _SECONDS[unit[0].lower()] for number, unit in parts)
    whole = [unit for unit, size in _SECONDS.items() if seconds % size == 0]
    return f"; did you mean '{seconds // _SECONDS[whole[-1]]}{whole[-1]}'?" if whole and seconds else ""
