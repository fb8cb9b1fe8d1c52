"""Lets the threads of a merge or a check end when nobody waits for them any more: at Ctrl-C, or after an error.

Python waits for the threads of a pool, and one of them may be waiting for a node that stays silent. So whoever starts
such threads gives them an event; what waits or repeats in them looks at it.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cloudrl.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

_mine = threading.local()


class Cancelled(CheckpointError):
    """Nobody waits for the result."""


@contextmanager
def workers(count: int, stop: threading.Event, name: str) -> Iterator[ThreadPoolExecutor]:
    """Threads that end soon once `stop` is set, which also happens when the block is left by an exception."""
    with ThreadPoolExecutor(count, thread_name_prefix=name, initializer=_take, initargs=(stop,)) as pool:
        try:
            yield pool
        except BaseException:
            stop.set()
            raise


def check() -> None:
    """Raises: Cancelled: this thread is to end."""
    stop = _event()
    if stop is not None and stop.is_set():
        raise Cancelled("it was interrupted")


def sleep(seconds: float) -> None:
    """Wait, but not beyond the end of this thread's work."""
    stop = _event()
    if stop is None:
        time.sleep(seconds)
    else:
        stop.wait(seconds)


def _take(stop: threading.Event) -> None:
    _mine.stop = stop


def _event() -> threading.Event | None:
    return getattr(_mine, "stop", None)
