"""What the fixture `run` is and returns."""

from collections.abc import Callable
from typing import NamedTuple


class Typed(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    def ended(self, code: int, *said: str) -> "Typed":
        """It has ended with this status, and all of this stands in what it has said beside its output."""
        assert self.code == code, self.err
        assert [each for each in said if each not in self.err] == [], self.err
        return self


Run = Callable[..., Typed]
