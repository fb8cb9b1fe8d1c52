"""Sizes, counts and ranges of them: `128GB`, `1TB..`, `16..64GB`, `8`, `2..`; and durations: `30m`, `1d`.

The spelling is dstack 0.22.5's (core/models/resources.py: Memory, Range), less what can only be a slip: negative
or zero sizes, sizes without a unit, `nan`, exponents. 1 GB is 1024 MB.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cloudrl.errors import SpecError
from cloudrl.spec.quoting import quoted

_UNIT_GB = {"MB": 1 / 1024, "GB": 1.0, "TB": 1024.0}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(MB|GB|TB)?", re.IGNORECASE)
_NEARLY_A_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([MGT])(i?B?|[a-z]*)", re.IGNORECASE)
_SIZES = "For example '128GB', '512MB' or '1TB'"
_COUNTS = "For example '8', '2..' or '1..8'"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"([0-9]+) *([smhdw])?")
_NEARLY = re.compile(r"([0-9]+) *([smhdw])[a-z]*", re.IGNORECASE)  # `30min`, `2 days`
_EXAMPLES = "For example '30m', '2h' or '1d'"


def size(value: object) -> str:
    """An amount of memory or disk, `128GB` or `0.5TB`, in its usual spelling.

    Raises:
        SpecError: `value` is not a size, has no unit, or is not above zero.
    """
    kept = _size(value)[1]
    _check_unit(value, (_digits(value),), kept)
    return kept


def size_bytes(value: object) -> int:
    """The bytes of `128GB`, or of `0.5TB`.

    Raises:
        SpecError: As `size`.
    """
    size(value)
    return round(_size(value)[0] * 2**30)


def size_range(value: object) -> str:
    """`128GB`, `128GB..`, `..1TB` or `16GB..64GB`, in its usual spelling.

    Raises:
        SpecError: A bound is not a size, both are missing, or they are in the wrong order. Or none has a unit; one
            without is in GB, as dstack reads it, and is taken beside another one in GB.
    """
    bounds = _bounds(value, _SIZES)
    low, high = (_size(bound) if bound else None for bound in bounds)
    if low and high and low[0] > high[0]:
        raise SpecError(f"{quoted(value)} runs backwards; did you mean '{high[1]}..{low[1]}'?", hint=_SIZES)
    kept = low[1] if low and low == high else f"{low[1] if low else ''}..{high[1] if high else ''}"
    _check_unit(value, bounds, kept)
    return kept


def _check_unit(value: object, bounds: Sequence[str], in_gb: str) -> None:
    """Raise `SpecError` for a bare number.

    Args:
        value: What was given.
        bounds: Its amounts.
        in_gb: The same with the unit that a bare number has to dstack.
    """
    units = {bound.lstrip("0123456789.").upper() for bound in bounds if bound}
    if "" in units and units != {"", "GB"}:
        raise SpecError(f"{quoted(value)} has no unit", hint=f"In gigabytes: {in_gb}")


def bounds_gb(text: str) -> tuple[float | None, float | None]:
    """Least and most of a text of `size_range`, in GB, both included; None is no bound.

    Raises:
        SpecError: as `size_range`.
    """
    low, high = (_size(bound)[0] if bound else None for bound in _bounds(text, _SIZES))
    return low, high


def least_bytes(value: str | None) -> int:
    """The lower bound of a `size_range`, in bytes; 0 without one."""
    low = bounds_gb(value)[0] if value else None
    return round(low * 2**30) if low else 0


@dataclass(frozen=True)
class CountRange:
    """From `min` to `max` things, both included; None is no bound. Never both None."""

    min: int | None
    max: int | None

    @classmethod
    def parse(cls, value: object) -> CountRange:
        """Read `8`, `2..`, `..8` or `1..8`.

        Raises:
            SpecError: A bound is not a whole number, both are missing, or they are in the wrong order.
        """
        low, high = (_count(bound) if bound else None for bound in _bounds(value, _COUNTS))
        if low is not None and high is not None and low > high:
            raise SpecError(f"{quoted(value)} runs backwards; did you mean '{high}..{low}'?", hint=_COUNTS)
        return cls(low, high)

    @property
    def exact(self) -> int | None:
        """The number, when the range holds only one."""
        return self.min if self.min == self.max else None

    def __str__(self) -> str:
        if self.min == self.max:
            return str(self.min)
        return f"{'' if self.min is None else self.min}..{'' if self.max is None else self.max}"


def _bounds(value: object, examples: str) -> tuple[str, str]:
    parts = _digits(value).split("..")
    if len(parts) > 2 or not any(parts):
        raise SpecError(f"{quoted(value)} is not a range", hint=examples)
    return parts[0], parts[-1]


def _digits(value: object) -> str:
    if isinstance(value, float):
        return format(value, "f").rstrip("0").rstrip(".")
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise SpecError(f"{quoted(value)} is neither text nor a number", hint=_SIZES)
    return str(value).replace(" ", "")


def _size(value: object) -> tuple[float, str]:
    """In GB, and as a text."""
    written = _digits(value)
    match = _SIZE.fullmatch(written)
    if match is None:
        near = _NEARLY_A_SIZE.fullmatch(written)
        meant = f"; did you mean '{near[1]}{near[2].upper()}B'?" if near else ""
        raise SpecError(f"{quoted(value)} is not a size{meant}", hint=_SIZES)
    number, unit = match[1], (match[2] or "GB").upper()
    size_gb = float(number) * _UNIT_GB[unit]
    if not 0 < size_gb < float("inf"):
        raise SpecError(f"{quoted(value)} is not an amount above zero", hint=_SIZES)
    return size_gb, f"{number}{unit}"


def _count(value: str) -> int:
    if not re.fullmatch(r"[0-9]+", value):
        raise SpecError(f"{quoted(value)} is not a whole number", hint=_COUNTS)
    return int(value)


def seconds_of(value: object) -> int:
    """The seconds of `30m`, `2 h`, or a number of them.

    Raises:
        SpecError: `value` is not a duration.
    """
    return _parts(value)[0]


def duration(value: object) -> str:
    """A duration above zero, in its usual spelling.

    Raises:
        SpecError: `value` is not a duration.
    """
    seconds, text = _parts(value)
    if seconds == 0:
        raise SpecError(f"{quoted(value)} is not a time at all", hint=_EXAMPLES)
    return text


def duration_with_unit(value: object) -> str:
    """A duration above zero that names its unit: a bare number may be meant as minutes.

    Raises:
        SpecError: `value` is not a duration, or has no unit.
    """
    number = str(value).strip()
    if number.isdecimal() and int(number[:18]):
        hint = f"{number}m are minutes, {number}s seconds, {number}h hours"
        raise SpecError(f"{quoted(value)} has no unit", hint=hint)
    return duration(value)


def _parts(value: object) -> tuple[int, str]:
    written = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    match = _DURATION.fullmatch(written) if isinstance(written, str) else None
    if match is None:
        near = _NEARLY.fullmatch(written) if isinstance(written, str) else None
        meant = f"; did you mean '{near[1]}{near[2].lower()}'?" if near else ""
        raise SpecError(f"{quoted(value)} is not a duration{meant}", hint=_EXAMPLES)
    number, unit = match[1], match[2] or "s"
    return int(number) * _SECONDS[unit], f"{number}{unit}"
