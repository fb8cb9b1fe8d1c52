"""The page of a living run, for the browser of this machine alone.

It listens on loopback, answers under a path that nobody can guess, and refuses requests that name another host: a web
page elsewhere whose name leads to 127.0.0.1 gets nothing.
"""

import secrets
import sys
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from cloudrl.report.model import Report
from cloudrl.report.page import as_element, data, page, policy

REFRESH_S = 10


class ReportServer(ThreadingHTTPServer):
    """Serves until it is shut down.

    Args:
        look: gives the report as it is now; called by one thread at a time.
        port: 0 for a free one.

    Raises:
        OSError: the port is taken.
    """

    daemon_threads = True

    def __init__(self, look: Callable[[], Report], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.look = look
        self.folder = f"/{secrets.token_urlsafe(16)}/"

    @property
    def url(self) -> str:
        """Of the page."""
        return f"http://127.0.0.1:{self.server_port}{self.folder}"

    def is_own(self, host: str | None) -> bool:
        """Whether a request was meant for this server, by its header `Host`."""
        return host in (f"127.0.0.1:{self.server_port}", f"localhost:{self.server_port}")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing is said of a browser that has gone away."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer

    def do_GET(self) -> None:
        """The page, and its data."""
        if not self.server.is_own(self.headers.get("Host")):
            self._answer(403, "text/plain", "This address is not served here.\n")
            return
        path = urlsplit(self.path).path
        if path == self.server.folder:
            self._report("text/html", partial(page, refresh_s=REFRESH_S))
        elif path == f"{self.server.folder}data.json":
            self._report("application/json", lambda report: as_element(data(report)))
        else:
            self._answer(404, "text/plain", "There is nothing here.\n")

    def _report(self, kind: str, draw: Callable[[Report], str]) -> None:
        try:
            text = draw(self.server.look())
        except Exception as failure:  # noqa: BLE001 - the browser is told, and asks again
            why = f"{type(failure).__name__}: {failure}".splitlines()[0]
            self._answer(500, "text/plain", f"The report cannot be made now: {why}\n")
        else:
            self._answer(200, kind, text)

    def _answer(self, status: int, kind: str, text: str) -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"), ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", f"{policy(is_served=True)}; frame-ancestors 'none'"),
            ("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer"),
        ):  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""
