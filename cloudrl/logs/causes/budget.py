"""How long a search may take: a log may hold anything, and `cloudrl why` has to answer all the same."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")
LIMIT_S = 20.0
"""Hundreds of logs of 1,000 ordinary lines take a tenth of it."""


class Budget:
    """The seconds of one search. `take` ends every loop of it early, once they are over.

    Args:
        seconds: From now on.
        clock: Seconds that never run backwards.
    """

    def __init__(self, seconds: float = LIMIT_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._ends_at = clock, clock() + seconds
        self.is_spent = False
        """Whether something was left out."""

    def take(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Yield the items as long as there is time left."""
        for item in items:
            self.is_spent = self.is_spent or self._clock() > self._ends_at
            if self.is_spent:
                return
            yield item
