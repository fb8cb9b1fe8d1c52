"""Asking the server until something is so."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloudrl.errors import CloudrlError

T = TypeVar("T")


def wait_for(
    look: Callable[[], T | None],
    late: Callable[[], CloudrlError],
    *,
    timeout_s: float,
    every_s: float = 1.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """What `look` finds, asked again as long as it is None; after `timeout_s` the error that `late` makes."""
    deadline = clock() + timeout_s
    while (found := look()) is None:
        if clock() > deadline:
            raise late()
        sleep(every_s)
    return found
