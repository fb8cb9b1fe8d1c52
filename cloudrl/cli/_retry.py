"""Asking again while nobody answers, where giving up would cost money."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from cloudrl.cli import _output
from cloudrl.errors import ConnectionFailed, Unauthorized

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

PATIENCE_S = 300.0
"""A server that is restarted, or a laptop that has just woken, is back within minutes."""
_AGAIN_S = 5.0


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
    deadline = clock() + PATIENCE_S
    is_told = False
    while True:
        try:
            return request()
        except Unauthorized:
            raise
        except ConnectionFailed as error:
            if clock() >= deadline:
                raise
            if not is_told:
                _output.note(f"{error.message}; trying again for {PATIENCE_S / 60:.0f} minutes")
                is_told = True
        sleep(_AGAIN_S)
