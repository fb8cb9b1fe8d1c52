"""Lets the threads of a merge or a check end when they are no longer waited for: at Ctrl-C, or after an error.

Python waits for the threads of a pool, and one of them may be waiting for a node that stays silent. So threads that
`workers` has started have an event in common; what waits or repeats in them looks at it.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

_thread = threading.local()
_NEVER = threading.Event()


class Cancelled(Exception):
    """The result is no longer waited for."""


@contextmanager
def workers(count: int, name: str) -> Iterator[ThreadPoolExecutor]:
    """Threads that end soon once the block is left."""
    stop = threading.Event()
    start = (_thread, "stop", stop)
    with ThreadPoolExecutor(count, thread_name_prefix=name, initializer=setattr, initargs=start) as pool:
        try:
            yield pool
        finally:
            stop.set()


def check() -> None:
    """Raises: Cancelled: this thread is to end."""
    if _stop_event().is_set():
        raise Cancelled


def sleep(seconds: float) -> None:
    """Wait, but not beyond the end of this thread's work."""
    _stop_event().wait(seconds)


def _stop_event() -> threading.Event:
    return getattr(_thread, "stop", _NEVER)
