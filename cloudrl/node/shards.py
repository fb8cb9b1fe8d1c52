"""The agent's side of `cloudrl.node.shard_child`: one child for all questions, started with the first of them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import threading
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Dict, Optional

if TYPE_CHECKING:
    from cloudrl.node.process import Child

SLOWLY_BYTES_PER_S = 200e6


class ShardChildFailed(Exception):
    """The child could not do it, or has died over it."""


class ShardChild:
    """Thread-safe.

    Args:
        start: Starts the child; its argument is the descriptor that the child is to inherit and to be told of.
    """

    def __init__(self, start: Callable[[int], Child]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._child: Optional[Child] = None
        self._asking: Optional[socket.socket] = None

    @property
    def can_cast(self) -> bool:
        """Whether the child's Python, which is this one, has what a cast takes."""
        return importlib.util.find_spec("numpy") is not None

    def crc32(
        self,
        file: BinaryIO,
        *,
        offset: int = 0,
        count: Optional[int] = None,
        start: int = 0,
        slowly: bool = False,
    ) -> Dict[str, int]:
        """{"size_bytes", "crc32"} of an open file, or of a part of it; slowly, as not to be in anybody's way.

        `start` is the CRC-32 of what stands before the part, if that is to be included.

        Raises:
            ShardChildFailed: see there.
        """
        pace = SLOWLY_BYTES_PER_S if slowly else None
        request = {"do": "crc32", "offset": offset, "count": count, "start": start, "bytes_per_s": pace}
        return self._ask(request, file.fileno())

    def cast(
        self, file: BinaryIO, to: socket.socket, *, offset: int, count: int, stored: str, wanted: str
    ) -> int:
        """Send `count` values from byte `offset` of a file to a socket; returns the bytes that went.

        Raises:
            ShardChildFailed: see there; the other end may have got a part.
        """
        request = {"do": "cast", "stored": stored, "wanted": wanted, "offset": offset, "count": count}
        return int(self._ask(request, file.fileno(), to.fileno())["sent"])

    def _ask(self, request: Dict[str, Any], file: int, *more: int) -> Dict[str, Any]:
        reading, writing = os.pipe()
        with contextlib.ExitStack() as stack:
            answer = stack.enter_context(os.fdopen(reading, "rb"))
            try:
                socket.send_fds(self._socket(), [json.dumps(request).encode()], [file, writing, *more])
            except OSError as error:
                raise ShardChildFailed(f"the child for shards cannot be asked: {error}") from error
            finally:
                os.close(writing)
            value = json.loads(answer.read() or "{}")
        if not value or "error" in value:
            raise ShardChildFailed(value.get("error", "the child for shards has ended"))
        return dict(value)

    def _socket(self) -> socket.socket:
        with self._lock:
            if self._asking is None or self._child is None or self._child.poll() is not None:
                if self._asking is not None:
                    self._asking.close()
                self._asking, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    self._child = self._start(theirs.fileno())
            return self._asking

    def close(self) -> None:
        """The child ends when nobody can ask it any more."""
        with self._lock:
            if self._asking is not None:
                self._asking.close()
                self._asking = None
