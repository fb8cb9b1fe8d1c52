"""The calls of `cloudrl.node.server` about checkpoints.

A file that the node cannot read is answered with UNREADABLE, as far as that is known before the bytes begin.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Dict, Iterator, Optional
from urllib.parse import parse_qs, urlsplit

from cloudrl.node.files import Refused
from cloudrl.node.ranges import Span, number, parse_range, parse_ranges
from cloudrl.node.shard_worker import CASTS
from cloudrl.node.shard_worker_client import ShardUnreadable, ShardWorkerFailed
from cloudrl.protocol import routes
from cloudrl.protocol.failures import ApiError, ErrorCode

if TYPE_CHECKING:
    import socket
    from email.message import Message

    from cloudrl.node.server_context import ServerContext

_MAX_BODY_BYTES = 1 << 20


class CheckpointCalls:
    """A part of the handler; what it uses of the rest stands first."""

    context: ServerContext
    path: str
    headers: Message
    connection: socket.socket
    close_connection: bool
    _passed_on: Callable[..., bool]
    _body: Callable[[int, str], bytes]
    _json: Callable[[Any], None]
    _bytes: Callable[..., None]
    _head: Callable[[int, Dict[str, str]], None]
    _send: Callable[[BinaryIO, Span], None]

    def _inventory(self, rank: str) -> None:
        if not self._passed_on(int(rank)):
            self._json({"rank": int(rank), **self.context.checkpoint_store.inventory()})

    def _checkpoint_file(self, rank: str, root: str, path: str) -> None:
        if self._passed_on(int(rank)):
            return
        asked = parse_qs(urlsplit(self.path).query)
        with self._opened(root, path) as file:
            with _unreadable():
                span = self._span(file)
            if "cast" in asked:
                self._cast(file, span, asked["cast"][0])
            elif "crc32" in asked:
                self._crc32(file, span, number(asked["crc32"][0]))
            else:
                with _unreadable():
                    os.pread(file.fileno(), 1, span.first)  # after the head nothing can be said any more
                self._send(file, span)

    def _checkpoint_ranges(self, rank: str, root: str, path: str) -> None:
        body = self._body(_MAX_BODY_BYTES, "a list of ranges")
        if self._passed_on(int(rank), body):
            return
        try:
            ranges = parse_ranges(body)
        except ValueError as error:
            raise ApiError(ErrorCode.BAD_REQUEST, str(error)) from error
        with self._opened(root, path) as file:
            with _unreadable():
                pieces = [os.pread(file.fileno(), length, offset) for offset, length in ranges]
            size = os.fstat(file.fileno()).st_size
        if [len(piece) for piece in pieces] != [length for _, length in ranges]:
            raise ApiError(ErrorCode.BAD_RANGE, f"the file has {size} bytes, and a range lies outside it")
        self._bytes(b"".join(pieces), {"Content-Type": "application/octet-stream"})

    def _remove_checkpoint(self, rank: str, root: str, path: str) -> None:
        if self._passed_on(int(rank)):
            return
        with _as_http():
            self.context.checkpoint_store.remove(root, path)
        self._json({"removed": path})

    @contextlib.contextmanager
    def _opened(self, root: str, path: str) -> Iterator[BinaryIO]:
        with _as_http():
            file = self.context.checkpoint_store.open(root, path)
        with file:
            yield file

    def _span(self, file: BinaryIO) -> Span:
        try:
            return parse_range(self.headers.get("Range"), file.seek(0, 2))
        except ValueError as error:
            raise ApiError(ErrorCode.BAD_RANGE, str(error)) from error

    def _crc32(self, file: BinaryIO, span: Span, start: Optional[int]) -> None:
        if start is None:
            raise ApiError(ErrorCode.BAD_REQUEST, "crc32 is the sum of what stands before the range, or 0")
        with _unreadable():
            sums = self.context.checkpoint_store.child.crc32(
                file, offset=span.first, count=span.length, start=start
            )
        self._json(sums)

    def _cast(self, file: BinaryIO, span: Span, asked: str) -> None:
        stored, _, wanted = asked.partition(",")
        width = CASTS.get((stored, wanted))
        if width is None or span.first + span.length > span.size or span.length % width:
            raise ApiError(
                ErrorCode.BAD_REQUEST, f"{asked[:40]!r} is no cast of whole values that can be done here"
            )
        if not self.context.checkpoint_store.child.can_cast:
            raise ApiError(
                ErrorCode.UNSUPPORTED, "this node's Python has no numpy; read the values as they are"
            )
        count, headers = (
            span.length // width,
            {routes.CAST_HEADER: asked, "Content-Type": "application/octet-stream"},
        )
        with _unreadable():  # as long as it can be said
            self.context.checkpoint_store.child.crc32(file, offset=span.first, count=1)
        self._head(200, {**headers, "Content-Length": str(count * 2)})
        try:
            sent = self.context.checkpoint_store.child.cast(
                file, self.connection, offset=span.first, count=count, stored=stored, wanted=wanted
            )
        except ShardWorkerFailed:
            sent = 0  # whoever asked has gone, or asks again and gets another child
        if sent != count * 2:
            self.close_connection = True


@contextlib.contextmanager
def _unreadable() -> Iterator[None]:
    """UNREADABLE for a file that cannot be read, which is final; WORKER_FAILED is not."""
    try:
        yield
    except ShardUnreadable as error:
        raise ApiError(ErrorCode.UNREADABLE, str(error)) from error
    except ShardWorkerFailed as error:
        raise ApiError(ErrorCode.WORKER_FAILED, str(error)) from error
    except OSError as error:
        raise ApiError(ErrorCode.UNREADABLE, error.strerror or str(error)) from error


@contextlib.contextmanager
def _as_http() -> Iterator[None]:
    try:
        yield
    except Refused:
        raise ApiError(
            ErrorCode.FORBIDDEN, "only regular files and steps below the folder are shown"
        ) from None
    except FileNotFoundError:
        raise ApiError(ErrorCode.NOT_FOUND, "there is no such file") from None
    except OSError as error:  # EACCES, EROFS, EBUSY: the volume does not let this node
        raise ApiError(ErrorCode.CONFLICT, error.strerror or str(error)) from error
