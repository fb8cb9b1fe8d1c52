"""What the fixture `run` is and returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Typed(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


Run = Callable[..., Typed]
