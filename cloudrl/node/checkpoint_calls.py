"""The calls of `cloudrl.node.server` about checkpoints.

GET    /v1/nodes/{rank}/inventory       runs, steps and files (`cloudrl.node.checkpoint_store`)
GET    /v1/nodes/{rank}/{root}/{path}   a file, with `Range: bytes=a-b`
    ...?cast=F32,BF16                   its values in fewer bits; the range counts stored bytes
    ...?crc32=START                     {"size_bytes", "crc32"} of the range, calculated here
POST   /v1/nodes/{rank}/{root}/{path}   {"ranges": [[offset, length], ...]}: these, one after the other
DELETE /v1/nodes/{rank}/{root}/{path}   remove one step

A file that the node cannot read is answered with 422, as far as that is known before the bytes begin.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Dict, Iterator, Optional
from urllib.parse import parse_qs, urlsplit

from cloudrl.node.files import Refused
from cloudrl.node.ranges import Span, number, parse_range, parse_ranges
from cloudrl.node.server_context import HttpError, ServerContext
from cloudrl.node.shard_worker import CASTS
from cloudrl.node.shard_worker_client import ShardUnreadable, ShardWorkerFailed

if TYPE_CHECKING:
    import socket
    from email.message import Message

_FILE = r"/v1/nodes/(\d{1,4})/(checkpoints|ray_tmp)/(.+)"
ROUTES = (
    ("GET", re.compile(r"/v1/nodes/(\d{1,4})/inventory"), "inventory"),
    ("GET", re.compile(_FILE, re.DOTALL), "checkpoint_file"),
    ("POST", re.compile(_FILE, re.DOTALL), "checkpoint_ranges"),
    ("DELETE", re.compile(_FILE, re.DOTALL), "remove_checkpoint"),
)
TRANSFERS = {"checkpoint_file", "checkpoint_ranges"}
CAST_HEADER = "X-Cloudrl-Cast"
"""In the answer, when the values were cast: an agent that knows nothing of it sends them as they are."""
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
            raise HttpError(400, str(error)) from error
        with self._opened(root, path) as file:
            with _unreadable():
                pieces = [os.pread(file.fileno(), length, offset) for offset, length in ranges]
            size = os.fstat(file.fileno()).st_size
        if [len(piece) for piece in pieces] != [length for _, length in ranges]:
            raise HttpError(416, f"the file has {size} bytes, and a range lies outside it")
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
            raise HttpError(416, str(error)) from error

    def _crc32(self, file: BinaryIO, span: Span, start: Optional[int]) -> None:
        if start is None:
            raise HttpError(400, "crc32 is the sum of what stands before the range, or 0")
        with _unreadable():
            sums = self.context.checkpoint_store.child.crc32(
                file, offset=span.first, count=span.length, start=start
            )
        self._json(sums)

    def _cast(self, file: BinaryIO, span: Span, asked: str) -> None:
        stored, _, wanted = asked.partition(",")
        width = CASTS.get((stored, wanted))
        if width is None or span.first + span.length > span.size or span.length % width:
            raise HttpError(400, f"{asked[:40]!r} is no cast of whole values that can be done here")
        if not self.context.checkpoint_store.child.can_cast:
            raise HttpError(501, "this node's Python has no numpy; read the values as they are")
        count, headers = (
            span.length // width,
            {CAST_HEADER: asked, "Content-Type": "application/octet-stream"},
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
    """422 for a file that cannot be read, which is final; 500 for a child that has failed, which is not."""
    try:
        yield
    except ShardUnreadable as error:
        raise HttpError(422, str(error)) from error
    except ShardWorkerFailed as error:
        raise HttpError(500, str(error)) from error
    except OSError as error:
        raise HttpError(422, error.strerror or str(error)) from error


@contextlib.contextmanager
def _as_http() -> Iterator[None]:
    try:
        yield
    except Refused:
        raise HttpError(403, "only regular files and steps below the folder are shown") from None
    except FileNotFoundError:
        raise HttpError(404, "there is no such file") from None
    except OSError as error:  # EACCES, EROFS, EBUSY: the volume does not let this node
        raise HttpError(409, error.strerror or str(error)) from error
