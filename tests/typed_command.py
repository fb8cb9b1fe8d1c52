"""What the fixture `run` is and returns."""

from collections.abc import Callable
from typing import NamedTuple


class Typed(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


Run = Callable[..., Typed]
