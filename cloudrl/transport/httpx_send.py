"""The seam to Ray's dashboard: httpx2, which knows TLS, and proxies on the way to another machine."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cloudrl.errors import ConnectionFailed, without_login
from cloudrl.protocol.exchange import Request, Response

if TYPE_CHECKING:
    import httpx2

_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|::1")


def send(request: Request) -> Response:
    """Send a request over a connection of its own.

    Raises:
        ConnectionFailed: the server does not answer; the same when the body breaks off later.
    """
    import httpx2

    from cloudrl.foreign_httpx import patient

    place, stack = urlsplit(request.url), ExitStack()
    # a proxy of the environment cannot reach this machine's loopback
    is_near = _LOOPBACK.fullmatch(place.hostname or "") is not None
    timeout = httpx2.Timeout(request.timeout_s, connect=request.connect_timeout_s)
    with stack, _failures(request):
        # without TLS there is nothing to verify, and no certificates to load
        client = httpx2.Client(timeout=timeout, trust_env=not is_near, verify=place.scheme == "https")
        client.headers["Accept-Encoding"] = "identity"  # answers are read as they were sent; of a proxy, too
        stack.enter_context(client)
        extensions = {} if request.timeout_s is None else patient(request.timeout_s)
        answer = stack.enter_context(
            client.stream(
                request.method, request.url, content=request.body, headers=dict(request.headers), extensions=extensions
            )
        )
        return Response(answer.status_code, answer.headers, _Stream(request, answer, stack.pop_all()))


class _Stream:
    """The body of an answer, byte for byte as it was sent."""

    def __init__(self, request: Request, answer: httpx2.Response, stack: ExitStack) -> None:
        self._request, self._answer, self._stack = request, answer, stack
        self._chunks, self._rest = answer.iter_raw(), bytearray()

    def read(self, limit: int = -1) -> bytes:
        """As many bytes, fewer only at the end; all of them without a limit."""
        with _failures(self._request):
            while (limit < 0 or len(self._rest) < limit) and (chunk := next(self._chunks, b"")):
                self._rest += chunk
        return self._taken(limit)

    def read1(self, limit: int = -1) -> bytes:
        """What comes next, no more than the limit; empty at the end."""
        if not self._rest:
            with _failures(self._request):
                self._rest += next(self._chunks, b"")
        return self._taken(limit)

    def _taken(self, limit: int) -> bytes:
        size = len(self._rest) if limit < 0 else limit
        taken = bytes(self._rest[:size])
        del self._rest[:size]
        return taken

    def close(self) -> None:
        self._stack.close()

    def abort(self) -> None:
        """Wake a thread that waits in `read1`: closing a socket does not, on Linux."""
        stream = self._answer.extensions.get("network_stream")
        connection = stream.get_extra_info("socket") if stream is not None else None
        if connection is not None:
            with suppress(OSError):  # it was closed already
                socket.socket.shutdown(connection, socket.SHUT_RDWR)  # below TLS, which the other thread is using


@contextmanager
def _failures(request: Request) -> Iterator[None]:
    import httpx2

    try:
        yield
    except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL) as failure:
        place, reason = urlsplit(request.url), str(failure) or type(failure).__name__
        raise ConnectionFailed(
            f"no Ray answers at {place.scheme}://{without_login(place.netloc)}: {reason}",
            hint="Is the cluster up, and the tunnel to it? See: cloudrl status",
        ) from failure
