"""The page of a living run, for the browser of this machine alone.

It listens on loopback, answers under a path that cannot be guessed, and refuses requests that name another host: a web
page elsewhere whose name leads to 127.0.0.1 gets nothing.
"""

import secrets
from collections.abc import Callable
from functools import partial

from cloudrl.listening.heads import Head, Refused, check_target, refusals
from cloudrl.listening.http_server import ConnectionHandler, HttpServer
from cloudrl.listening.web_pages import refuse_web_pages
from cloudrl.report.model import Report
from cloudrl.report.page import as_element, data, page, policy

REFRESH_S = 10


class ReportServer(HttpServer):
    """Serves until it is shut down.

    Args:
        look: gives the report as it is now; called by one thread at a time.
        port: 0 for a free one.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, look: Callable[[], Report], port: int = 0) -> None:
        refusal_of = refusals(self._check, lambda _status, reason: f"{reason}\n", "text/plain; charset=utf-8")
        super().__init__(("127.0.0.1", port), _Handler, refusal_of)
        self.look = look
        self.folder = f"/{secrets.token_urlsafe(16)}/"

    @property
    def url(self) -> str:
        """Of the page."""
        return f"http://127.0.0.1:{self.server_port}{self.folder}"

    def _check(self, head: Head) -> None:
        refuse_web_pages(head.get, port=self.server_port, may_open=True)
        check_target(head.target)
        if head.method != "GET":
            raise Refused(501, "Only GET does something here.")
        if head.path not in (self.folder, f"{self.folder}data.json"):
            raise Refused(404, "There is nothing here.")


class _Handler(ConnectionHandler):
    """Of a request that was checked; HTTP/1.0, so that there is one for each connection."""

    server: ReportServer

    def do_GET(self) -> None:  # noqa: N802  the base class looks for it
        """The page, and its data."""
        if self.path.partition("?")[0] == self.server.folder:
            self._report("text/html", partial(page, refresh_s=REFRESH_S))
        else:
            self._report("application/json", lambda report: as_element(data(report)))

    def _report(self, kind: str, draw: Callable[[Report], str]) -> None:
        try:
            text = draw(self.server.look())
        except Exception as failure:  # noqa: BLE001 - the browser gets it, and asks again
            why = f"{type(failure).__name__}: {failure}".splitlines()[0]
            self._answer(500, "text/plain", f"The report cannot be made now: {why}\n")
        else:
            self._answer(200, kind, text)

    def _answer(self, status: int, kind: str, text: str) -> None:
        headers = {"Content-Security-Policy": f"{policy(is_served=True)}; frame-ancestors 'none'"}
        self.answer(status, f"{kind}; charset=utf-8", text.encode("utf-8", "replace"), headers)
