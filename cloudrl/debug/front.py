"""Ray's dashboard on loopback for Ray's VS Code extension, which sends no token and cannot reach the nodes.

The extension asks the dashboard for workers that are paused, and connects to the address and port that it finds there
(Ray 2.60, `/api/v0/workers`: `ip`, `debugger_port`). Here both lead to a relay of this machine. Whoever reaches the
front uses the cluster's token, so it answers nothing but GET, and only to this user's programs, never to a web page.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable

from cloudrl.debug.relay import is_own_connection
from cloudrl.errors import CloudrlError
from cloudrl.foreign import parse_json
from cloudrl.listening.heads import Head, Refused, refusals
from cloudrl.listening.http_server import ConnectionHandler, HttpServer
from cloudrl.listening.web_pages import refuse_web_pages
from cloudrl.protocol.exchange import Response

WORKERS = "/api/v0/workers"
_BODY_BYTES, _BODY_S = 64 * 1024 * 1024, 60.0
_CHUNK_BYTES = 65536
_PATH = re.compile(r"/[!-~]{0,8000}")


class Front(HttpServer):
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

    def __init__(
        self,
        get: Callable[[str], Response],
        local_port: Callable[[str, int, int], int | None],
        port: int = 0,
        *,
        body_bytes: int = _BODY_BYTES,
        body_s: float = _BODY_S,
    ) -> None:
        refusal_of = refusals(self._check, lambda _status, reason: f"{reason}\n", "text/plain; charset=utf-8")
        super().__init__(("127.0.0.1", port), _Handler, refusal_of)
        self.get, self.local_port, self.body_bytes, self.body_s = get, local_port, body_bytes, body_s

    @property
    def url(self) -> str:
        """What the extension is given as the address of the cluster."""
        return f"http://127.0.0.1:{self.server_port}"

    def is_welcome(self, address: tuple[str, int]) -> bool:
        """Only this user's programs."""
        return is_own_connection(address, self.server_port)

    def _check(self, head: Head) -> None:
        refuse_web_pages(head.get, port=self.server_port)
        if head.method != "GET":
            raise Refused(501, "Only GET does something here.")
        if not _PATH.fullmatch(head.target):
            raise Refused(400, "Not a path.")


class _Handler(ConnectionHandler):
    """Of a request that was checked; HTTP/1.0, so that there is one for each connection."""

    server: Front

    def do_GET(self) -> None:  # noqa: N802  the base class looks for it
        """Pass it on."""
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
        self.answer(status, kind, body, {"X-Frame-Options": "DENY"})


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
