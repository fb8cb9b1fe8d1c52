"""Sizes, counts and ranges of them: `128GB`, `1TB..`, `16..64GB`, `8`, `2..`.

The spelling is dstack 0.22.5's (core/models/resources.py: Memory, Range), less what can only be a slip: negative
or zero sizes, `nan`, exponents.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from cloudrl.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

_UNIT_GB = {"MB": 1 / 1024, "GB": 1.0, "TB": 1024.0}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(MB|GB|TB)?", re.IGNORECASE)
_NEARLY_A_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([MGT])(i?B?|[a-z]*)", re.IGNORECASE)
_SIZES = "For example '128GB', '512MB' or '1TB'"
_COUNTS = "For example '8', '2..' or '1..8'"


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
            near = _NEARLY_A_SIZE.fullmatch(written)
            meant = f"; did you mean '{near[1]}{near[2].upper()}B'?" if near else ""
            raise SpecError(f"{value!r} is not a size{meant}", hint=_SIZES)
        number, unit = match[1], (match[2] or "GB").upper()
        size_gb = float(number) * _UNIT_GB[unit]
        if not 0 < size_gb < float("inf"):
            raise SpecError(f"{value!r} is no amount above zero", hint=_SIZES)
        return cls(size_gb, f"{number}{unit}")

    def __str__(self) -> str:
        return self.text or f"{self.size_gb!r}GB"


N = TypeVar("N", Size, int)


@dataclass(frozen=True)
class Range(Generic[N]):
    """From `min` to `max`, both included; None is no bound. Never both None."""

    min: N | None
    max: N | None

    @property
    def exact(self) -> N | None:
        """The one value, when the range holds no other."""
        return self.min if self.min == self.max else None

    def __str__(self) -> str:
        if self.min == self.max:
            return str(self.min)
        return f"{'' if self.min is None else self.min}..{'' if self.max is None else self.max}"


def size_range(value: object) -> Range[Size]:
    """Read `128GB`, `128GB..`, `..1TB` or `16GB..64GB`.

    Raises:
        SpecError: A bound is no size, there is none, or they stand in the wrong order.
    """
    return _range(value, Size.parse, _SIZES)


def count_range(value: object) -> Range[int]:
    """Read `8`, `2..`, `..8` or `1..8`.

    Raises:
        SpecError: A bound is no whole number, there is none, or they stand in the wrong order.
    """
    return _range(value, _count, _COUNTS)


def _range(value: object, parse: Callable[[object], N], examples: str) -> Range[N]:
    parts = _digits(value).split("..")
    if len(parts) > 2 or not any(parts):
        raise SpecError(f"{value!r} is not a range", hint=examples)
    low, high = (parse(part) if part else None for part in (parts[0], parts[-1]))
    if low is not None and high is not None and low > high:
        raise SpecError(f"{value!r} runs backwards; did you mean '{high}..{low}'?", hint=examples)
    return Range(low, high)


def _digits(value: object) -> str:
    if isinstance(value, float):
        return format(value, "f").rstrip("0").rstrip(".")
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise SpecError(f"{value!r} is neither text nor a number", hint=_SIZES)
    return str(value).replace(" ", "")


def _count(value: object) -> int:
    if not re.fullmatch(r"[0-9]+", str(value)):
        raise SpecError(f"{value!r} is not a whole number", hint=_COUNTS)
    return int(str(value))
