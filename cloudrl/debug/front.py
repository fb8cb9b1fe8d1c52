"""Ray's dashboard on loopback for Ray's VS Code extension, which sends no token and cannot reach the nodes.

The extension asks the dashboard for workers that are paused, and connects to the address and port that it finds there
(Ray 2.60, `/api/v0/workers`: `ip`, `debugger_port`). Here both lead to a relay of this machine. Whoever reaches the
front uses the cluster's token, so it answers nothing but GET, and only to programs of this user that are no web page.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cloudrl.debug.relay import is_own_connection
from cloudrl.errors import CloudrlError
from cloudrl.foreign import parse_json
from cloudrl.protocol.exchange import Response

WORKERS = "/api/v0/workers"
_BODY_BYTES, _BODY_S = 64 * 1024 * 1024, 60.0
_CHUNK_BYTES = 65536
_PATH = re.compile(r"/[!-~]{0,8000}")
_FROM_NO_PAGE = (None, "none", "same-origin")
"""Values of the header Sec-Fetch-Site; a page's picture or script names no Origin, but this."""


class Front(ThreadingHTTPServer):
    """Serves until it is shut down.

    Args:
        get: asks the dashboard for a path with its query.
        local_port: of the relay that leads to a worker's debugger, by the worker's ip, pid and debugger port; None for
            a worker that is not paused.
        port: 0 for a free one.
        body_bytes, body_s: how large an answer may be, and how long it may take: some of the dashboard's never end.

    Raises:
        OSError: the port is taken.
    """

    daemon_threads = True

    def __init__(
        self,
        get: Callable[[str], Response],
        local_port: Callable[[str, int, int], int | None],
        port: int = 0,
        *,
        body_bytes: int = _BODY_BYTES,
        body_s: float = _BODY_S,
    ) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.get, self.local_port, self.body_bytes, self.body_s = get, local_port, body_bytes, body_s

    @property
    def url(self) -> str:
        """What the extension is given as the address of the cluster."""
        return f"http://127.0.0.1:{self.server_port}"

    def is_own(self, host: str | None) -> bool:
        """Whether a request was meant for this server, by its header `Host`."""
        return host in (f"127.0.0.1:{self.server_port}", f"localhost:{self.server_port}")

    def verify_request(self, _request: object, client_address: tuple[str, int]) -> bool:
        """Only this user's."""
        return is_own_connection(client_address, self.server_port)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing is said of a client that has gone away."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Front

    def do_GET(self) -> None:
        """Pass it on, unless a web page has sent it."""
        if not self.server.is_own(self.headers.get("Host")):
            self._answer(403, "text/plain", b"This address is not served here.\n")
        elif self.headers.get("Origin") is not None or self.headers.get("Sec-Fetch-Site") not in _FROM_NO_PAGE:
            self._answer(403, "text/plain", b"Web pages get nothing here.\n")
        elif not _PATH.fullmatch(self.path):
            self._answer(400, "text/plain", b"Not a path.\n")
        else:
            self._pass_on()

    def _pass_on(self) -> None:
        try:
            with self.server.get(self.path) as response:
                kind, body = response.header("Content-Type") or "text/plain", self._body(response)
        except (CloudrlError, ValueError) as error:
            self._answer(502, "text/plain", f"{error}\n".encode("utf-8", "replace"))
            return
        if 300 <= response.status < 400:  # where it leads has no front
            self._answer(
                502, "text/plain", f"The dashboard answers {response.status} and names another place.\n".encode()
            )
            return
        if response.status == 200 and self.path.partition("?")[0].rstrip("/") == WORKERS:
            body = with_local_ports(body, self.server.local_port)
        self._answer(response.status, kind, body)

    def _body(self, response: Response) -> bytes:
        """In pieces, so that one without an end has one here.

        Raises:
            ValueError: it is too large, or takes too long.
        """
        body, end = bytearray(), time.monotonic() + self.server.body_s
        while chunk := response.stream.read1(_CHUNK_BYTES):
            body += chunk
            if len(body) > self.server.body_bytes or time.monotonic() > end:
                limits = f"{self.server.body_bytes} bytes and {self.server.body_s:g} s"
                raise ValueError(f"the answer of the dashboard is larger or takes longer than is passed on: {limits}")
        return bytes(body)

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind), ("Content-Length", str(len(body))), ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"), ("X-Frame-Options", "DENY"), ("Referrer-Policy", "no-referrer"),
        ):  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


def with_local_ports(body: bytes, local_port: Callable[[str, int, int], int | None]) -> bytes:
    """The list of workers, with the addresses of those that are paused replaced; as it is where it has another form."""
    try:
        answer = parse_json(body)
        rows = answer["data"]["result"]["result"]
        for row in rows:
            if row.get("debugger_port") and (
                port := local_port(str(row.get("ip")), int(row.get("pid") or 0), int(row["debugger_port"]))
            ):
                row.update(ip="127.0.0.1", debugger_port=port)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return body
    return json.dumps(answer).encode()
