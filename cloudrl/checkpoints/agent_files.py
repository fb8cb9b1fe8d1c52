"""Requests to the agent for bytes of checkpoints, which go on after a broken connection.

Standard library only: a merge on the head runs under the image's Python, which has no HTTP client of ours.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cloudrl.errors import CheckpointError, ConnectionFailed
from cloudrl.protocol.backoff import Attempts, Backoff
from cloudrl.shards import cancellation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_CHUNK_BYTES = 256 << 10
_FINAL = (400, 403, 404, 413, 416, 422)
"""Asking again would bring the same, 422 for example of a disk that cannot read the bytes; all else may pass: a head
that restarts, a node that is not heard of yet."""


class PermanentError(CheckpointError):
    """The agent answers, and says no for good; `status` is HTTP's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class RangeClient:
    """One agent. Threads share it; each request has a connection of its own.

    Args:
        url: The agent of rank 0, which passes on what concerns another rank.
        token: For it.
        renew: Gives a newer token for a refused one, or the same.
        backoff: Pauses after a break, and when to give up.
        on_break: Called with a sentence for each failure that is going to be tried again.
        timeout_s: For each step of a request.
        clock: Seconds that never run backwards.
        sleep: Waits that many seconds, or until nobody waits for this thread.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        renew: Callable[[str], str] | None = None,
        backoff: Backoff | None = None,
        on_break: Callable[[str], None] = lambda _sentence: None,
        timeout_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = cancellation.sleep,
    ) -> None:
        place = urlsplit(url)
        self._host, self._port = place.hostname or "127.0.0.1", place.port or 80
        self._token, self._renew, self._renewing = token, renew, threading.Lock()
        self._backoff, self._on_break = backoff, on_break
        self._timeout_s, self._clock, self._sleep = timeout_s, clock, sleep

    def fetch(
        self, path: str, first: int, count: int, *, label: str, into: bytearray, query: str = ""
    ) -> None:
        """Bytes `first` to `first + count` of a file at the end of `into`; what has come is never asked for again.

        With `query=cast=F32,BF16` the range counts stored bytes, of which there are twice as many.

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
            with self._open("GET", f"{path}?{query}" if query else path, headers) as answer:
                _check_cast(answer, query)
                _read_all(answer, wanted - (len(into) - start), into)

        self._keep_trying(attempt, label, lambda: len(into))

    def call(self, method: str, path: str, *, label: str, body: Any = None, headers: Any = None) -> bytes:
        """One short answer.

        Raises:
            CheckpointError: As `fetch`.
        """
        answers: list[bytes] = []

        def attempt() -> None:
            sent = json.dumps(body).encode() if body is not None else None
            with self._open(method, path, headers or {}, sent) as answer:
                content = bytearray()
                _read_all(answer, int(answer.headers.get("Content-Length") or 0), content)
                answers.append(bytes(content))

        self._keep_trying(attempt, label, lambda: 0)
        return answers[-1]

    def _keep_trying(self, attempt: Callable[[], None], label: str, progress: Callable[[], int]) -> None:
        attempts, before = Attempts(self._backoff, clock=self._clock, sleep=self._sleep), progress()
        while True:
            cancellation.check()
            try:
                attempt()
            except PermanentError as error:
                raise PermanentError(f"{label}: {error.message}", error.status) from error
            except (OSError, http.client.HTTPException, RetryableError) as error:
                if progress() > before:
                    before = progress()
                    attempts.progress()
                reason = str(error) or type(error).__name__
                if attempts.are_exhausted:
                    raise CheckpointError(
                        f"{label} cannot be read: nothing has come for {attempts.silence_s:.0f} s ({reason})",
                        hint="Is the cluster up? See cloudrl status; then type the same command again",
                    ) from error
                self._on_break(f"{label}: {reason}; trying again")
                attempts.pause()
            else:
                return

    @contextmanager
    def _open(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        token = self._token
        try:
            given = {"Authorization": f"Bearer {token}", "Connection": "close", **headers}
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            if answer.status >= 300:
                self._refuse(answer, token)
            yield answer
        finally:
            connection.close()

    def _refuse(self, answer: http.client.HTTPResponse, token: str) -> None:
        try:
            message = str(json.loads(answer.read(4096))["error"])
        except (ValueError, KeyError, TypeError):
            message = f"HTTP {answer.status}"
        if answer.status == 401:
            self._take_newer_token(token)
        if message.endswith(
            "is not known here"
        ):  # the head has started again, and not heard of that node yet
            raise RetryableError(message)
        if answer.status == 501 or answer.status in _FINAL:
            raise PermanentError(message, answer.status)
        raise RetryableError(message)

    def _take_newer_token(self, refused: str) -> None:
        """After a restart of the cluster; a token that stays refused is another cluster's.

        Another thread may have taken a newer one since this request was sent: that one has not been refused.
        """
        with self._renewing:
            if self._token == refused and self._renew is not None:
                try:
                    self._token = self._renew(refused)
                except ConnectionFailed as failure:  # it is being started again
                    raise RetryableError(failure.message) from failure
            if self._token == refused:
                raise PermanentError(
                    "the agent refuses the token: another cluster may have taken its port", 401
                )


class RetryableError(Exception):
    """An answer that may be another one in a moment."""


class CastUnsupported(Exception):
    """The agent did not cast."""


def _check_cast(answer: http.client.HTTPResponse, query: str) -> None:
    if query.startswith("cast=") and answer.headers.get("X-Cloudrl-Cast") != query.removeprefix("cast="):
        raise CastUnsupported


def _read_all(answer: http.client.HTTPResponse, count: int, into: bytearray) -> None:
    """Exactly `count` bytes; what has come before a break stays."""
    end = len(into) + count
    while len(into) < end:
        cancellation.check()
        chunk = answer.read1(min(_CHUNK_BYTES, end - len(into)))
        if not chunk:
            raise RetryableError(f"the connection broke {end - len(into)} bytes too early")
        into += chunk
