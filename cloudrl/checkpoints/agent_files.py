"""Requests to the agent for bytes of checkpoints, which go on after a broken connection.

Standard library only: a merge on the head runs under the image's Python, which has no HTTP client of ours.
"""

from __future__ import annotations

import http.client
import json
import time
from typing import TYPE_CHECKING, Any

from cloudrl.errors import CheckpointError, ConnectionFailed
from cloudrl.protocol import routes
from cloudrl.protocol.backoff import Attempts, Backoff
from cloudrl.protocol.client import AgentRefused
from cloudrl.protocol.failures import ErrorCode
from cloudrl.shards import cancellation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cloudrl.protocol.client import AgentClient, Response

_CHUNK_BYTES = 256 << 10
READ_TIMEOUT_S = 30.0
"""For each step of a request."""
_FINAL = (
    ErrorCode.BAD_REQUEST, ErrorCode.UNAUTHORIZED, ErrorCode.FORBIDDEN, ErrorCode.NOT_FOUND, ErrorCode.TOO_LARGE,
    ErrorCode.BAD_RANGE, ErrorCode.UNREADABLE, ErrorCode.UNSUPPORTED,
)  # fmt: skip
"""Asking again would bring the same, of a disk that cannot read the bytes for example; all else may pass: a head that
restarts, a node that is not heard of yet."""


class PermanentError(CheckpointError):
    """The agent answers, and says no for good."""

    def __init__(self, message: str, *, hint: str | None = None, code: ErrorCode | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class RangeClient:
    """Bytes of files through one agent. Threads share it; each request has a connection of its own.

    Args:
        agent: Of rank 0, which passes on what concerns another rank.
        backoff: Pauses after a break, and when to give up.
        on_break: Called with a sentence for each failure that is going to be tried again.
        clock: Seconds that never run backwards.
        sleep: Waits that many seconds, or until nobody waits for this thread.
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

    def fetch(
        self, file: Mapping[str, Any], first: int, count: int, *, label: str, into: bytearray,
        query: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Bytes `first` to `first + count` of a file at the end of `into`; what has come is never asked for again.

        With `query={"cast": "F32,BF16"}` the range counts stored bytes, of which there are twice as many.

        Raises:
            CheckpointError: The agent refuses, or has been silent for `backoff.give_up_s`.
        """
        ratio = 2 if query else 1
        start, wanted = len(into), count // ratio

        def attempt() -> None:
            if ratio == 2 and (len(into) - start) % 2:
                del into[-1:]  # half of a value
            done = (len(into) - start) * ratio
            headers = {"Range": f"bytes={first + done}-{first + count - 1}"}
            with self._open(routes.CHECKPOINT_FILE, file, query=query, headers=headers) as answer:
                if query and answer.header(routes.CAST_HEADER) != query["cast"]:
                    raise PermanentError(f"{label}: the agent does not cast", code=ErrorCode.UNSUPPORTED)
                _read_all(answer, wanted - (len(into) - start), into)

        self._keep_trying(attempt, label, lambda: len(into))

    def call(
        self, route: routes.Route, file: Mapping[str, Any], *, label: str, body: Any = None, headers: Any = None,
        query: Any = None,
    ) -> bytes:  # fmt: skip
        """One short answer about a file, which is a rank, a root and a path.

        Raises:
            CheckpointError: As `fetch`.
        """
        sent = json.dumps(body).encode() if body is not None else None
        content = bytearray()

        def attempt() -> None:
            content.clear()
            with self._open(route, file, query=query, headers=headers, body=sent) as answer:
                _read_all(answer, int(answer.header("Content-Length") or 0), content)

        self._keep_trying(attempt, label, lambda: 0)
        return bytes(content)

    def _keep_trying(self, attempt: Callable[[], None], label: str, progress: Callable[[], int]) -> None:
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
                        f"{label} cannot be read: nothing has come for {attempts.silence_s:.0f} s ({reason})",
                        hint="Is the cluster up? See cloudrl status; then type the same command again",
                    ) from error
                self._on_break(f"{label}: {reason}; trying again")
                attempts.pause()

    def _open(self, route: routes.Route, file: Mapping[str, Any], **more: Any) -> Response:
        return self._agent.open(self._agent.request(route, timeout_s=READ_TIMEOUT_S, **more, **file))


def _raise_if_final(refusal: AgentRefused, label: str) -> None:
    if refusal.status == 401:
        raise PermanentError(
            f"{label}: the agent refuses the token: another cluster may have taken its port",
            code=ErrorCode.UNAUTHORIZED,
        ) from refusal
    if refusal.code in _FINAL:
        raise PermanentError(f"{label}: {refusal}", code=refusal.code) from refusal


def _read_all(answer: Response, count: int, into: bytearray) -> None:
    """Exactly `count` bytes; what has come before a break stays."""
    end = len(into) + count
    while len(into) < end:
        cancellation.check()
        chunk = answer.stream.read1(min(_CHUNK_BYTES, end - len(into)))
        if not chunk:
            raise ConnectionResetError(f"the connection broke {end - len(into)} bytes too early")
        into += chunk
