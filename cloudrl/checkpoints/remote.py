"""A file of a checkpoint on some node of a cluster, read through the agent of its head.

It goes on after a broken connection. Standard library only: a merge on the head runs under the image's Python, which
has no HTTP client of ours.
"""

import http.client
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cloudrl.errors import CheckpointError, ConnectionFailed
from cloudrl.foreign import NOT_AS_EXPECTED, parse_object, whole_number
from cloudrl.protocol import routes
from cloudrl.protocol.backoff import Attempts, Backoff
from cloudrl.protocol.client import AgentClient, AgentRefused
from cloudrl.protocol.exchange import Response
from cloudrl.protocol.failures import ErrorCode
from cloudrl.protocol.limits import CASTS, MAX_RANGES, MAX_RANGES_BYTES
from cloudrl.saves.places import FileCopy
from cloudrl.shards import cancellation
from cloudrl.shards.dtypes import DType
from cloudrl.shards.source import ShardSource
from cloudrl.units import duration_text, size_text

_CHUNK_BYTES = 256 << 10
READ_TIMEOUT_S = 30.0
"""For each step of a request."""
_FINAL = (
    ErrorCode.BAD_REQUEST, ErrorCode.UNAUTHORIZED, ErrorCode.FORBIDDEN, ErrorCode.NOT_FOUND, ErrorCode.TOO_LARGE,
    ErrorCode.BAD_RANGE, ErrorCode.UNREADABLE, ErrorCode.UNSUPPORTED,
)  # fmt: skip
"""Asking again would bring the same, of a disk that cannot read the bytes for example; all else may pass: a head that
restarts, a node that is not heard of yet."""
_GONE = (ErrorCode.NOT_FOUND, ErrorCode.UNREADABLE)
_NOW_HAS = re.compile(r"the file has ([0-9]{1,18}) bytes")
_SUMMED_AT_ONCE_BYTES = 16 << 20
"""A busy network volume may give 1 MB/s, and nothing travels meanwhile: such a sum ends within the client's timeout."""
_SUM_BYTES = 4096
_LEFT_TO_THE_READER = (ErrorCode.NOT_FOUND, ErrorCode.UNSUPPORTED)
"""How an agent says that it cannot calculate: without numpy for example."""


class PermanentError(CheckpointError):
    """The agent answers, and says no for good."""

    def __init__(self, message: str, *, hint: str | None = None, code: ErrorCode | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class RangeClient:
    """Requests to one agent that are sent again. Threads share it; each request has a connection of its own.

    Args:
        agent: Of rank 0, which passes on what concerns another rank.
        backoff: Pauses after a break, and when to give up.
        on_break: Called with a sentence for each failure that is going to be tried again.
        clock: Seconds that never run backwards.
        sleep: Waits that many seconds, or until this thread is no longer waited for.
    """

    def __init__(
        self,
        agent: AgentClient,
        *,
        backoff: Backoff | None = None,
        on_break: Callable[[str], None] = lambda _sentence: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = cancellation.sleep,
    ) -> None:
        self._agent, self._backoff, self._on_break = agent, backoff, on_break
        self._clock, self._sleep = clock, sleep

    def open(self, route: routes.Route, **more: Any) -> Response:
        """Send a request once."""
        return self._agent.open(self._agent.request(route, timeout_s=READ_TIMEOUT_S, **more))

    def keep_trying(self, attempt: Callable[[], None], label: str, progress: Callable[[], int] = lambda: 0) -> None:
        """Repeat an attempt until it succeeds.

        Args:
            attempt: Sends a request and reads the answer.
            label: Of the file, for messages.
            progress: What has come so far: with more of it, patience begins anew.

        Raises:
            CheckpointError: The agent refuses, or has been silent for `backoff.give_up_s`.
        """
        attempts, before = Attempts(self._backoff, clock=self._clock, sleep=self._sleep), progress()
        while True:
            cancellation.check()
            try:
                return attempt()
            except (AgentRefused, ConnectionFailed, OSError, http.client.HTTPException) as error:
                if isinstance(error, AgentRefused):
                    _raise_if_final(error, label)
                if progress() > before:
                    before = progress()
                    attempts.progress()
                reason = getattr(error, "message", None) or str(error) or type(error).__name__
                if attempts.are_exhausted:
                    raise CheckpointError(
                        f"{label} cannot be read: nothing has come for {duration_text(attempts.silence_s)} ({reason})",
                        hint="Is the cluster up? See cloudrl status; then type the same command again",
                    ) from error
                self._on_break(f"{label}: {reason}; trying again")
                attempts.pause()


def _raise_if_final(refusal: AgentRefused, label: str) -> None:
    if refusal.status == 401:
        raise PermanentError(
            f"{label}: the agent refuses the token: another cluster may have taken its port",
            code=ErrorCode.UNAUTHORIZED,
        ) from refusal
    if refusal.code is ErrorCode.BAD_RANGE:
        match = _NOW_HAS.search(str(refusal))
        now = f": {size_text(int(match[1]))}, {match[1]} bytes" if match else ""
        raise PermanentError(
            f"{label} has changed since it was listed, and is shorter{now}",
            hint="Is a job saving this step? Wait for it, or take a step that is whole: cloudrl checkpoints list",
            code=refusal.code,
        ) from refusal
    if refusal.code in _FINAL:
        hint = "Other steps: cloudrl checkpoints list" if refusal.code in _GONE else None
        raise PermanentError(f"{label}: {refusal}", hint=hint, code=refusal.code) from refusal


class RemoteShard(ShardSource):
    """See `ShardSource`; every read is a request of its own.

    Args:
        client: To the cluster.
        file: Where it is.
    """

    def __init__(self, client: RangeClient, file: FileCopy) -> None:
        self.label = file.label
        self._client, self._size, self._casts = client, file.size_bytes, True
        self._file = {"rank": file.location.ranks[0], "root": file.location.root, "path": file.path}

    def size_bytes(self) -> int:
        """See `ShardSource.size_bytes`."""
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        """See `ShardSource.read`."""
        self._check(offset, length)
        return self._fetch(offset, length)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """See `ShardSource.read_many`."""
        for offset, length in ranges:
            self._check(offset, length)
        pieces: list[bytes] = []
        for batch in _batches(ranges):
            size, body = sum(length for _, length in batch), json.dumps({"ranges": batch}).encode()
            content = self._call(routes.CHECKPOINT_RANGES, size, body=body)
            if len(content) != size:
                raise self._changed()
            for _, length in batch:
                pieces.append(content[:length])
                content = content[length:]
        return pieces

    def read_cast(self, offset: int, count: int, stored: DType, wanted: DType) -> bytes:
        """See `ShardSource.read_cast`; the node casts where that saves bytes."""
        pair = (stored.safetensors, wanted.safetensors)
        if pair in CASTS and self._casts:
            self._check(offset, count * CASTS[pair])
            try:
                return self._fetch(offset, count * CASTS[pair], cast=",".join(pair))
            except PermanentError as error:
                if error.code not in _LEFT_TO_THE_READER:
                    raise
                self._casts = False
        return super().read_cast(offset, count, stored, wanted)

    def crc32(self, offset: int, length: int) -> int:
        """See `ShardSource.crc32`; the node sums, and only the sum travels."""
        self._check(offset, length)
        value, end = 0, offset + length
        while offset < end:
            count = min(_SUMMED_AT_ONCE_BYTES, end - offset)
            headers = {"Range": f"bytes={offset}-{offset + count - 1}"}
            content = self._call(routes.CHECKPOINT_FILE, _SUM_BYTES, query={"crc32": value}, headers=headers)
            try:
                answer = parse_object(content)
                summed, crc = answer["size_bytes"], int(answer["crc32"])
            except NOT_AS_EXPECTED:
                raise CheckpointError(
                    f"{self.label}: what answers is not a cloudrl agent", hint="See: cloudrl status"
                ) from None
            if summed != count:
                raise self._changed()
            value, offset = crc, offset + count
        return value

    def _fetch(self, offset: int, length: int, *, cast: str | None = None) -> bytes:
        """So many bytes as they are stored, of which a cast leaves half; what has come is never asked for again."""
        ratio, content = 2 if cast else 1, bytearray()

        def attempt() -> None:
            if cast and len(content) % 2:
                del content[-1:]  # half of a value
            headers = {"Range": f"bytes={offset + len(content) * ratio}-{offset + length - 1}"}
            query = {"cast": cast} if cast else None
            with self._client.open(routes.CHECKPOINT_FILE, query=query, headers=headers, **self._file) as answer:
                if cast and answer.header(routes.CAST_HEADER) != cast:
                    raise PermanentError(f"{self.label}: the agent does not cast", code=ErrorCode.UNSUPPORTED)
                _read_until(answer, length // ratio, content)

        if length:
            self._client.keep_trying(attempt, self.label, lambda: len(content))
        return bytes(content)

    def _changed(self) -> CheckpointError:
        return CheckpointError(
            f"{self.label} has changed while it was read", hint="Is a job saving this step? Wait for it"
        )

    def _call(self, route: routes.Route, limit_bytes: int, **more: Any) -> bytes:
        """One short answer."""
        content = bytearray()

        def attempt() -> None:
            content.clear()
            with self._client.open(route, **more, **self._file) as answer:
                size = whole_number(answer.header("Content-Length"))
                if size is None or size > limit_bytes:
                    raise CheckpointError(
                        f"{self.label}: the agent answers with more than the {limit_bytes:,} bytes that were asked for",
                        hint="Has another server taken its port? See: cloudrl status",
                    )
                _read_until(answer, size, content)

        self._client.keep_trying(attempt, self.label)
        return bytes(content)

    def _check(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > self._size:
            raise CheckpointError(
                f"{self.label} has {self._size} bytes, and {length} from byte {offset} on are asked for: it is cut off",
                hint="Take another copy, or another step: cloudrl checkpoints list",
            )


def _batches(ranges: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    batch: list[tuple[int, int]] = []
    size = 0
    for offset, length in ranges:
        if batch and (len(batch) == MAX_RANGES // 2 or size + length > MAX_RANGES_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((offset, length))
        size += length
    if batch:
        yield batch


def _read_until(answer: Response, count: int, content: bytearray) -> None:
    """Until there are so many bytes; what has come before a break stays."""
    while len(content) < count:
        cancellation.check()
        chunk = answer.stream.read1(min(_CHUNK_BYTES, count - len(content)))
        if not chunk:
            raise ConnectionResetError(f"the connection broke {count - len(content)} bytes too early")
        content += chunk
