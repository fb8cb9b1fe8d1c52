"""One request and its answer, over a connection of its own."""

from __future__ import annotations

import contextlib
import errno
import http.client
import socket
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Mapping, Optional, Union
from urllib.parse import urlsplit

from cloudrl.foreign import PatientResponse, read_all, whole_number

_NETWORK = (
    errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.EHOSTDOWN, errno.ENOTCONN,
)  # fmt: skip

Body = Optional[Union[bytes, Iterable[bytes]]]


@dataclass(frozen=True)
class Request:
    """One request, ready to be sent.

    Attributes:
        timeout_s: for each read once the connection stands, and for all reads of an answer that only dribbles in; None
            for ever.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: Body = field(default=None, repr=False)
    timeout_s: Optional[float] = 10.0
    connect_timeout_s: float = 10.0

    @property
    def is_repeatable(self) -> bool:
        """Whether it can be sent once more; a body in pieces cannot."""
        return self.body is None or isinstance(self.body, bytes)


@dataclass
class Response:
    """The head of an answer, and its body to be read; a context manager, which closes it.

    Attributes:
        stream: has `read`, `read1` and `close`, as `http.client.HTTPResponse` and `io.BytesIO` do; after an upgrade
            (101) it is the socket.
    """

    status: int
    headers: Mapping[str, str]
    stream: Any

    def header(self, name: str) -> Optional[str]:
        """A header, however its name is written."""
        return next((value for key, value in self.headers.items() if key.lower() == name.lower()), None)

    def content(self, limit_bytes: Optional[int] = None) -> bytes:
        """The whole body, of at most so many bytes; see `read_all`.

        Raises:
            Malformed: it is longer than that.
            http.client.IncompleteRead: it is shorter than its head says. The stream has errors of its own.
        """
        content, wanted = read_all(self.stream, limit_bytes), self.header("Content-Length") or ""
        is_plain = (self.header("Transfer-Encoding") or "identity").lower() == "identity"
        size_bytes = whole_number(wanted)
        if is_plain and size_bytes is not None and len(content) < size_bytes:
            raise http.client.IncompleteRead(content, size_bytes - len(content))
        return content

    def __enter__(self) -> Response:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()


Send = Callable[[Request], Response]


class _Unbuffered(PatientResponse):
    """Takes not a byte more than the head from the socket: after an upgrade, the next ones are the other side's."""

    buffering = 0


def send(request: Request) -> Response:
    """Send a request over a connection of its own: calls are rare, and nodes come and go. No proxy is asked.

    Raises:
        OSError, http.client.HTTPException: no answer, or the connection broke.
    """
    place = urlsplit(request.url)
    connection = http.client.HTTPConnection(
        place.hostname or "127.0.0.1", place.port or 80, timeout=request.connect_timeout_s
    )
    connection.response_class = _Unbuffered if "Upgrade" in request.headers else PatientResponse
    try:
        connection.connect()
        connection.sock.settimeout(request.timeout_s)
        target = place.path + (f"?{place.query}" if place.query else "")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # who refuses says why, and reads no more
            connection.request(request.method, target, request.body, dict(request.headers))
        answer = connection.getresponse()
    except BaseException:
        connection.close()
        raise
    if answer.status == http.client.SWITCHING_PROTOCOLS and "Upgrade" in request.headers:
        answer.close()
        return Response(answer.status, dict(answer.headers.items()), connection.sock)
    if connection.sock is not None:
        connection.sock.close()  # the answer holds it still; it goes when the answer is read or closed
    return Response(answer.status, dict(answer.headers.items()), answer)


def is_network_error(error: OSError) -> bool:
    """Whether a connection is to blame, rather than this machine's own disk."""
    # socket.timeout is another class before Python 3.10
    of_it = isinstance(error, (ConnectionError, TimeoutError, socket.timeout))
    return of_it or error.errno in _NETWORK
