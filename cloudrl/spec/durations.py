"""Durations: `30m`, `1d`, or a number of seconds."""

import re

from cloudrl.errors import SpecError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"([0-9]+) *([smhdw])?")
_NEARLY = re.compile(r"([0-9]+) *([smhdw])[a-z]*", re.IGNORECASE)  # `30min`, `2 days`
_EXAMPLES = "For example '30m', '2h' or '1d'"


def seconds_of(value: object) -> int:
    """The seconds of `30m`, `2 h`, or a number of them.

    Raises:
        SpecError: `value` is no duration.
    """
    return _parts(value)[0]


def duration(value: object) -> str:
    """A duration above zero, in its usual spelling.

    Raises:
        SpecError: `value` is none.
    """
    seconds, text = _parts(value)
    if seconds == 0:
        raise SpecError(f"{value!r} is no time at all", hint=_EXAMPLES)
    return text


def _parts(value: object) -> tuple[int, str]:
    written = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    match = _DURATION.fullmatch(written) if isinstance(written, str) else None
    if match is None:
        near = _NEARLY.fullmatch(written) if isinstance(written, str) else None
        meant = f"; did you mean '{near[1]}{near[2].lower()}'?" if near else ""
        raise SpecError(f"{value!r} is not a duration{meant}", hint=_EXAMPLES)
    number, unit = match[1], match[2] or "s"
    return int(number) * _SECONDS[unit], f"{number}{unit}"
