"""The agent's side of `cloudrl.node.shard_worker`: one child for all questions, started with the first of them."""

import contextlib
import importlib.util
import json
import os
import select
import socket
import threading
from typing import Any, BinaryIO, Callable, Dict, Optional, Tuple

from cloudrl.child_process import Child

SILENT_S = 90.0
"""Without a sign of life: longer than any client waits (`cloudrl.protocol.client`, `cloudrl.checkpoints.remote`),
and than the worker itself does for a client that takes nothing."""
_GRACE_S = 1.0


class ShardWorkerFailed(Exception):
    """The child could not do it, or has died over it."""


class ShardUnreadable(ShardWorkerFailed):
    """The file cannot be read; another try would end alike."""


class ShardWorkerClient:
    """Thread-safe.

    A child that is silent over a question is ended, and with it what others have asked: on a volume that hangs, each
    question would otherwise keep a thread and descriptors here and there, for ever.

    Args:
        start: Starts the child; its argument is the descriptor that the child is to inherit and to be told of.
        silent_s: How long the child may be silent.
    """

    def __init__(self, start: Callable[[int], Child], *, silent_s: float = SILENT_S) -> None:
        self._start, self._silent_s = start, silent_s
        self._lock = threading.Lock()
        self._child: Optional[Child] = None
        self._asking: Optional[socket.socket] = None

    @property
    def can_cast(self) -> bool:
        """Whether the child's Python, which is this one, has what a cast takes."""
        return importlib.util.find_spec("numpy") is not None

    def crc32(self, file: BinaryIO, *, offset: int, count: int, start: int = 0) -> Dict[str, int]:
        """{"size_bytes", "crc32"} of a part of an open file.

        `start` is the CRC-32 of what stands before the part, if that is to be included.

        Raises:
            ShardWorkerFailed: see there.
        """
        request = {"do": "crc32", "offset": offset, "count": count, "start": start}
        return self._ask(request, file.fileno())

    def cast(self, file: BinaryIO, to: socket.socket, *, offset: int, count: int, wanted: str) -> int:
        """Send `count` float32 from byte `offset` of a file to a socket, as `wanted`; returns the bytes that went.

        Raises:
            ShardWorkerFailed: see there; the other end may have got a part.
        """
        request = {"do": "cast", "wanted": wanted, "offset": offset, "count": count}
        return int(self._ask(request, file.fileno(), to.fileno())["sent"])

    def _ask(self, request: Dict[str, Any], file: int, *more: int) -> Dict[str, Any]:
        reading, writing = os.pipe()
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, reading)
            try:
                asking, child = self._running()
                socket.send_fds(asking, [json.dumps(request).encode()], [file, writing, *more])
            except OSError as error:
                raise ShardWorkerFailed(f"the child for shards cannot be asked: {error}") from error
            finally:
                os.close(writing)
            answer = _read_all(reading, self._silent_s)
        if answer is None:
            self._give_up(child)
            raise ShardWorkerFailed(f"the child for shards does not answer: silent for {self._silent_s:g} s")
        value = json.loads(answer or "{}")
        if value.get("unreadable"):
            raise ShardUnreadable(value["error"])
        if not value or "error" in value:
            raise ShardWorkerFailed(value.get("error", "the child for shards has ended"))
        return dict(value)

    def _running(self) -> Tuple[socket.socket, Child]:
        with self._lock:
            asking, child = self._asking, self._child
            if child is not None and child.poll() is None:
                if asking is None:  # it was given up; no second one until the volume is back
                    raise ShardWorkerFailed("the child for shards hangs over a read, and cannot be ended")
                return asking, child
            if asking is not None:
                asking.close()
            asking, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                child = self._start(theirs.fileno())
            self._asking, self._child = asking, child
            return asking, child

    def _give_up(self, child: Child) -> None:
        with self._lock:
            if child is not self._child or self._asking is None:
                return  # another question has ended it
            self._asking.close()
            self._asking = None
        child.end(_GRACE_S)

    def close(self) -> None:
        """The child ends when its parent has ended."""
        with self._lock:
            if self._asking is not None:
                self._asking.close()
                self._asking = None


def _read_all(pipe: int, silent_s: float) -> Optional[bytes]:
    """What comes until the end, without the blanks before it; None when nothing comes for so long."""
    poll, content = select.poll(), b""
    poll.register(pipe, select.POLLIN)
    while poll.poll(1000 * silent_s):
        chunk = os.read(pipe, 4096)
        if not chunk:
            return content
        content = (content + chunk).lstrip()
    return None
