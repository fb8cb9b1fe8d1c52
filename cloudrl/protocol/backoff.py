"""Waiting: between attempts that fail, and between looks at what grows.

Here and not in `transport`, since the agent and a merge on the head wait in the same way.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Callable, TypeVar

from cloudrl.errors import ConnectionFailed, Unauthorized

T = TypeVar("T")


@dataclass(frozen=True)
class Backoff:
    """Pauses between attempts, each twice the one before, and when to give up. Seconds."""

    first_s: float = 0.5
    longest_s: float = 15.0
    give_up_s: float = 600.0
    """Give up when nothing has come for that long."""


class Attempts:
    """Attempts at one thing: counts the failures in a row, and the time since something came.

    Args:
        backoff: the pauses, and when to give up.
        clock: seconds that never run backwards.
        sleep: waits that many seconds.
    """

    def __init__(
        self,
        backoff: Backoff | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.backoff = backoff or Backoff()
        self._clock, self._sleep = clock, sleep
        self._failures, self._progress_at = 0, clock()

    @property
    def silence_s(self) -> float:
        """How long nothing has come."""
        return self._clock() - self._progress_at

    @property
    def are_exhausted(self) -> bool:
        """Whether it is time to give up."""
        return self.silence_s >= self.backoff.give_up_s

    def progress(self) -> None:
        """Something came: begin with short pauses again."""
        self._failures, self._progress_at = 0, self._clock()

    def pause(self) -> None:
        """Wait after a failure."""
        self._sleep(min(self.backoff.longest_s, self.backoff.first_s * 2.0 ** min(self._failures, 30)))
        self._failures += 1

    def failed(
        self, failure: ConnectionFailed, on_break: Callable[[ConnectionFailed], None] = lambda _failure: None
    ) -> None:
        """Wait after a failure; raise it if it is time to give up, or if the token is refused, as it would be again."""
        if self.are_exhausted or isinstance(failure, Unauthorized):
            raise failure
        on_break(failure)
        self.pause()


def retry(
    request: Callable[[], T],
    backoff: Backoff | None = None,
    *,
    on_break: Callable[[ConnectionFailed], None] = lambda _failure: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """The answer to a request that may be repeated, asked again while no answer comes.

    Args:
        request: asks.
        backoff: the pauses, and when to give up.
        on_break: called with each failure that is going to be retried.
        clock: seconds that never run backwards.
        sleep: waits that many seconds.

    Raises:
        ConnectionFailed: no answer for `backoff.give_up_s`.
        Unauthorized: somebody has, and would answer the same again.
    """
    attempts = Attempts(backoff, clock=clock, sleep=sleep)
    while True:
        try:
            return request()
        except ConnectionFailed as failure:
            attempts.failed(failure, on_break)
