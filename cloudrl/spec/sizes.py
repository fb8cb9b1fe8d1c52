"""Sizes and counts as dstack writes them: `128GB`, `1TB..`, `16..64GB`, `8`, `2..`.

Source of the rules: dstack 0.22.5, core/models/resources.py (Memory, Range). We take what dstack takes, less
what can only be a slip: negative or zero sizes, `nan`, exponents.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from cloudrl.errors import SpecError

_UNIT_GB = {"MB": 1 / 1024, "GB": 1.0, "TB": 1024.0}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(MB|GB|TB)?", re.IGNORECASE)
_NEARLY_A_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([MGT])(i?B?|[a-z]*)", re.IGNORECASE)
_COUNT = re.compile(r"[0-9]+")
_EXAMPLES = "For example '128GB', '512MB' or '1TB'"


@dataclass(frozen=True, order=True)
class Size:
    """An amount of memory or disk; 1 GB is 1024 MB, as in dstack. `1TB` equals `1024GB`."""

    size_gb: float
    text: str = field(compare=False, default="")

    @classmethod
    def parse(cls, value: object) -> Size:
        """Read `128GB`, `0.5TB` or a number of GB.

        Raises:
            SpecError: `value` is no size, or not above zero.
        """
        written = _digits(value)
        match = _SIZE.fullmatch(written)
        if match is None:
            raise SpecError(f"{value!r} is not a size{_nearest_size(written)}", hint=_EXAMPLES)
        number, unit = match[1], (match[2] or "GB").upper()
        size_gb = float(number) * _UNIT_GB[unit]
        if not 0 < size_gb < float("inf"):
            raise SpecError(f"{value!r} is no amount above zero", hint=_EXAMPLES)
        return cls(size_gb, f"{number}{unit}")

    def __str__(self) -> str:
        return self.text or f"{self.size_gb!r}GB"


@dataclass(frozen=True)
class SizeRange:
    """From `min` to `max`, both included; None is no bound. Never both None."""

    min: Size | None
    max: Size | None

    @classmethod
    def parse(cls, value: object) -> SizeRange:
        """Read `128GB`, `128GB..`, `..1TB` or `16GB..64GB`.

        Raises:
            SpecError: A bound is no size, there is none, or they stand in the wrong order.
        """
        low, high = _bounds(value, _EXAMPLES)
        made = cls(Size.parse(low) if low else None, Size.parse(high) if high else None)
        if made.min and made.max and made.min > made.max:
            raise SpecError(f"{value!r} runs backwards; did you mean '{made.max}..{made.min}'?")
        return made

    def __str__(self) -> str:
        return _range_text(self.min, self.max)


@dataclass(frozen=True)
class CountRange:
    """From `min` to `max` things, both included; None is no bound. Never both None."""

    min: int | None
    max: int | None

    @classmethod
    def parse(cls, value: object) -> CountRange:
        """Read `8`, `2..`, `..8` or `1..8`.

        Raises:
            SpecError: A bound is no whole number, there is none, or they stand in the wrong order.
        """
        low, high = _bounds(value, "For example '8', '2..' or '1..8'")
        made = cls(_count(low) if low else None, _count(high) if high else None)
        if made.min is not None and made.max is not None and made.min > made.max:
            raise SpecError(f"{value!r} runs backwards; did you mean '{made.max}..{made.min}'?")
        return made

    @property
    def exact(self) -> int | None:
        """The number, when the range holds only one."""
        return self.min if self.min == self.max else None

    def __str__(self) -> str:
        return _range_text(self.min, self.max)


def _digits(value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return format(value, "f").rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    if not isinstance(value, str):
        raise SpecError(f"{value!r} is neither text nor a number", hint=_EXAMPLES)
    return value.replace(" ", "")


def _bounds(value: object, examples: str) -> tuple[str, str]:
    written = _digits(value)
    parts = written.split("..")
    if len(parts) > 2 or not any(parts):
        raise SpecError(f"{value!r} is not a range", hint=examples)
    return (parts[0], parts[-1])


def _count(written: str) -> int:
    if not _COUNT.fullmatch(written):
        raise SpecError(f"{written!r} is not a whole number", hint="For example '8', '2..' or '1..8'")
    return int(written)


def _nearest_size(written: str) -> str:
    match = _NEARLY_A_SIZE.fullmatch(written)
    return f"; did you mean '{match[1]}{match[2].upper()}B'?" if match else ""


def _range_text(low: object | None, high: object | None) -> str:
    if low == high:
        return str(low)
    return f"{'' if low is None else low}..{'' if high is None else high}"
