"""Curves in braille: a character is two dots wide and four high. Pure functions."""

import math
from collections.abc import Sequence

_BLANK = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Row, column -> the bit of a dot in Unicode's block."""
_LABEL = 8


def braille(points: Sequence[tuple[float, float]], width: int, height: int) -> list[str]:
    """Lines of characters through points that are ordered by x; what is not finite is a gap.

    The lowest value is on the bottom, the highest at the top. Where points are denser than dots, a column shows all
    values between its lowest and highest.
    """
    cells = [[0] * width for _ in range(height)]
    finite = [value for _, value in points if math.isfinite(value)]
    if not finite or width < 1 or height < 1:
        return [""] * height
    (first, last), (low, high) = (points[0][0], points[-1][0]), (min(finite), max(finite))
    columns, rows = 2 * width - 1, 4 * height - 1
    before = None
    for x, value in points:
        if not math.isfinite(value):
            before = None
            continue
        at_x = round((x - first) / (last - first) * columns) if last > first else 0
        at_y = round((high - value) / (high - low) * rows) if high > low else rows // 2
        for dot_x, dot_y in _line(before or (at_x, at_y), (at_x, at_y)):
            cells[dot_y // 4][dot_x // 2] |= _DOTS[dot_y % 4][dot_x % 2]
        before = at_x, at_y
    return ["".join(chr(_BLANK + cell) for cell in row) for row in cells]


def panel(title: str, points: Sequence[tuple[int, float]], width: int, height: int) -> list[str]:
    """A curve of `height` lines: its title with the last value, the curve with its bounds, and the first and last x."""
    values = [value for _, value in points if math.isfinite(value)]
    if not values:
        return [title[:width], " " * _LABEL + "no value yet", *[""] * (height - 2)]
    shown = f" {number(values[-1])}"
    lines = braille(points, width - _LABEL - 1, height - 2)
    labels = [""] * len(lines)
    low, high = min(values), max(values)
    if low == high:  # a level line, in the middle
        labels[(len(labels) - 1) // 2] = number(low)
    else:
        labels[-1], labels[0] = number(low), number(high)
    first, last = str(points[0][0]), str(points[-1][0])
    axis = f"step {first}".ljust(width - _LABEL - 1 - len(last)) + last if last != first else f"step {first}"
    return [
        title[: width - len(shown)] + shown,
        *(f"{label:>{_LABEL}} {line}" for label, line in zip(labels, lines, strict=True)),
        " " * (_LABEL + 1) + axis,
    ]


def number(value: float) -> str:
    """A number in eight characters at most."""
    if value == 0 or 0.01 <= abs(value) < 100_000:
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    text = f"{value:.1e}"
    return text if len(text) <= _LABEL else f"{value:.0e}"


def _line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """The dots from one to another."""
    (x0, y0), (x1, y1) = start, end
    count = max(abs(x1 - x0), abs(y1 - y0))
    if count == 0:
        return [end]
    return [(round(x0 + (x1 - x0) * i / count), round(y0 + (y1 - y0) * i / count)) for i in range(count + 1)]
