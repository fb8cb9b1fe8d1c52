"""The head of an HTTP request, read without a server around it, and the answer to one that is refused."""

from __future__ import annotations

import http.client
import re
from dataclasses import dataclass, field
from typing import Callable, Dict, Mapping, Optional

SERVER_NAME = "cloudrl"
"""What the header `Server` says: nothing of Python, which a scanner would look up."""
MAX_TARGET = 16_384
"""The longest path that Linux opens has 4,096 bytes, each of which may be encoded as three."""
_END = re.compile(rb"\n\r?\n")
_METHOD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,40}")
_TARGET = re.compile(r"/[!-~]*")
_VERSION = re.compile(r"HTTP/[0-9]\.[0-9]")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -\xff]*)")
"""RFC 9110, 5.5 and 5.6.2. A carriage return within a value would be the end of a line for Python's parser."""


class Refused(Exception):
    """A request gets no other answer than this status and reason."""

    def __init__(self, status: int, reason: str, headers: Optional[Mapping[str, str]] = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.headers = status, reason, dict(headers or {})


@dataclass(frozen=True)
class Head:
    """Method, path with query, and headers by their names in lower case; of several equal ones the first."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Without the query."""
        return self.target.partition("?")[0]

    def get(self, name: str) -> Optional[str]:
        """The value of a header, None if it was not sent."""
        return self.headers.get(name.lower())


def is_complete(received: bytearray, before: int = 0) -> bool:
    """Whether these bytes contain a whole head; so many of them alone did not."""
    return _END.search(received, max(0, before - 2)) is not None


def parse_head(received: bytes) -> Head:
    """Read a head.

    Raises:
        Refused: It is not a request of HTTP 1, its target is not a path, or it is too long.
    """
    end = _END.search(received)
    first, *rest = received[: end.start() if end else len(received)].split(b"\n")
    if end is None:
        raise Refused(*((431, "the headers are too long") if rest else (414, "the address is too long")))
    method, target = _request_line(first.rstrip(b"\r").decode("latin-1"))
    headers: Dict[str, str] = {}
    for line in rest:
        match = _HEADER.fullmatch(line.rstrip(b"\r"))
        if match is None:
            raise Refused(400, "a header is malformed")
        name, value = (group.decode("latin-1") for group in match.groups())
        headers.setdefault(name.lower(), value.rstrip(" \t"))
    return Head(method, target, headers)


def _request_line(line: str) -> tuple[str, str]:
    words = line.split(" ")
    if len(words) != 3 or not _METHOD.fullmatch(words[0]) or not _VERSION.fullmatch(words[2]):
        raise Refused(400, "this is not an HTTP request")
    if not words[2].startswith("HTTP/1."):
        raise Refused(505, f"{words[2]} is not spoken here, HTTP/1.1 is")
    if len(words[1]) > MAX_TARGET:
        raise Refused(414, f"an address has at most {MAX_TARGET} bytes, not {len(words[1])}")
    return words[0], words[1]


def check_target(target: str) -> None:
    """Return for a path, such as `/v1/status?x=1`.

    Raises:
        Refused: It names a host, or is something else.
    """
    if not _TARGET.fullmatch(target) or target.startswith("//"):
        raise Refused(400, "the request names a URL or no path; send a path that begins with one /")


def refusals(
    check: Callable[[Head], object], body: Callable[[int, str], str], kind: str = "application/json"
) -> Callable[[bytes], Optional[bytes]]:
    """What an `Acceptor` asks of an HTTP server.

    Args:
        check: Raises `Refused` for a head that is not admitted.
        body: The answer's body, by its status and reason.
        kind: Content type of the body.
    """

    def refusal_of(received: bytes) -> Optional[bytes]:
        is_head = received.startswith(b"HEAD ")
        try:
            check(parse_head(received))
        except Refused as refused:
            text = body(refused.status, refused.reason).encode("utf-8", "replace")
            return answer(refused.status, text, {"Content-Type": kind, **refused.headers}, has_body=not is_head)
        return None

    return refusal_of


def answer(status: int, body: bytes, headers: Mapping[str, str], *, has_body: bool = True) -> bytes:
    """An answer as bytes, after which the connection ends."""
    named = {
        "Server": SERVER_NAME, "Connection": "close", "Content-Length": str(len(body)),
        "X-Content-Type-Options": "nosniff", **headers,
    }  # fmt: skip
    lines = [f"HTTP/1.1 {status} {http.client.responses.get(status, '')}", *(f"{k}: {v}" for k, v in named.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + (body if has_body else b"")
