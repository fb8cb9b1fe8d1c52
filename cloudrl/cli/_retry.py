"""Asking again while nobody answers, where giving up would cost money."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from cloudrl.cli import _output
from cloudrl.protocol import backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloudrl.errors import ConnectionFailed

T = TypeVar("T")

_BACKOFF = backoff.Backoff(first_s=5.0, longest_s=5.0, give_up_s=300.0)
"""A server that is restarted, or a laptop that has just woken, is back within minutes."""


def retry(
    request: Callable[[], T],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """The answer to a request that may be repeated; asks again for some minutes while nobody answers, and says so.

    Raises:
        ConnectionFailed: nobody has answered all the while.
        Unauthorized: somebody has, and would answer the same again.
    """
    said: list[ConnectionFailed] = []

    def say_once(failure: ConnectionFailed) -> None:
        if not said:
            _output.note(f"{failure.message}; trying again for {_BACKOFF.give_up_s / 60:.0f} minutes")
        said.append(failure)

    return backoff.retry(request, _BACKOFF, on_break=say_once, clock=clock, sleep=sleep)
