"""How many clients are connected to debuggers through this agent."""

import contextlib
import threading
from typing import Iterator

from cloudrl.protocol.failures import ApiError, ErrorCode

MAX_RELAYS = 64
"""At once through one agent; each holds a thread and two sockets."""


class Relays:
    """How many there are."""

    def __init__(self, limit: int = MAX_RELAYS) -> None:
        self._free = threading.BoundedSemaphore(limit)
        self._limit = limit

    @contextlib.contextmanager
    def slot(self) -> Iterator[None]:
        """For as long as one lasts.

        Raises:
            ApiError: there are too many.
        """
        if not self._free.acquire(blocking=False):
            raise ApiError(ErrorCode.TOO_MANY, f"{self._limit} debuggers are connected through this node already")
        try:
            yield
        finally:
            self._free.release()
