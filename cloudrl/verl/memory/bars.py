"""Bars of text: what is likely needed, what in the worst case, and the limit; without colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_LEAST, _MOST = 10, 50
"""Characters of a bar."""
_BEYOND = 1.3
"""Bars show so many times the largest limit."""
_UNICODE, _ASCII = ("█", "░", "│"), ("#", "-", "|")
"""Likely, in the worst case, the limit."""


@dataclass(frozen=True)
class Bar:
    """One line.

    Attributes:
        label: in front of the bar.
        likely, high, limit: how long its parts are.
        text: behind it.
    """

    label: str
    likely: float
    high: float
    limit: float
    text: str


def draw(found: Sequence[Bar], width: int, *, is_unicode: bool) -> list[str]:
    """A line for each bar, all on one scale, and one that explains them.

    Args:
        found: what to draw.
        width: characters of a line, where the texts leave room for that.
        is_unicode: whether blocks can be printed.
    """
    if not found:
        return []
    marks = _UNICODE if is_unicode else _ASCII
    label = max(len(bar.label) for bar in found)
    room = width - label - max(len(bar.text) for bar in found) - 4
    size = max(_LEAST, min(_MOST, room))
    scale = _BEYOND * max(bar.limit for bar in found) / size
    lines = [f"  {bar.label:<{label}} {_cells(bar, size, scale, marks)} {bar.text}" for bar in found]
    legend = f"{marks[0]} likely  {marks[1]} worst case  {marks[2]} limit"
    return [*lines, f"  {'':<{label}} {legend}"]


def _cells(bar: Bar, size: int, scale: float, marks: tuple[str, str, str]) -> str:
    likely, high, limit = (min(size, round(each / scale)) for each in (bar.likely, bar.high, bar.limit))
    cells = [marks[0] if at < likely else marks[1] if at < high else " " for at in range(size)]
    cells[min(limit, size - 1)] = marks[2]
    return "".join(cells)
