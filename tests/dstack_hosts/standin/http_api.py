"""HTTP as Go's side of dstack speaks it: JSON both ways, errors as plain text, an empty success as "".

Source: dstack, runner/internal/common/api/api.go.
"""

from __future__ import annotations

import http.server
import json
import re
import socketserver
import sys
import threading
import urllib.parse
from collections.abc import Callable
from typing import Any, ClassVar

_MAX_JSON_BYTES = 1 << 20
TAKEN = object()  # returned by a handler that has taken over the connection


class ApiError(Exception):
    """An answer with an HTTP error status and a line of text."""

    def __init__(self, status: int, message: str = "") -> None:
        super().__init__(f"{status} {message}")
        self.status = status
        self.message = message


class Request:
    """One request: `query`, `body`, and the `handler` with its headers and its socket."""

    def __init__(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        url = urllib.parse.urlsplit(handler.path)
        self.handler = handler
        self.path = url.path
        self.query: dict[str, str] = dict(urllib.parse.parse_qsl(url.query))
        self.body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))

    def json(self) -> dict[str, Any]:
        """The body as an object. Raises ApiError 400, 413 or 415."""
        content_type = self.handler.headers.get("Content-Type", "")
        if content_type and content_type.split(";")[0].strip().lower() != "application/json":
            raise ApiError(415, "Content-Type header is not application/json")
        if len(self.body) > _MAX_JSON_BYTES:
            raise ApiError(413, "Request body must not be larger than 1MB")
        try:
            value = json.loads(self.body)
        except ValueError:
            raise ApiError(400, "Request body contains badly-formed JSON") from None
        if not isinstance(value, dict):
            raise ApiError(400, "Request body is not an object")
        return value


Route = tuple[str, str, Callable[..., Any]]  # method, pattern of the path, handler(request, *groups)


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 64


def serve(port: int, routes: list[Route], address: str = "127.0.0.1") -> http.server.HTTPServer:
    """Answer at an address, in threads, until `shutdown()`."""
    handler = type("Handler", (_Handler,), {"routes": routes})
    server = _Server((address, port), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    routes: ClassVar[list[Route]] = []

    def do_GET(self) -> None:
        request = Request(self)
        try:
            answer = self._answer(request)
        except ApiError as error:
            print(f"{self.command} {self.path}: {error}", file=sys.stderr, flush=True)
            self._send(error.status, f"{error.message}\n".encode())
            return
        if answer is None:
            self._send(200, b"\n")
        elif answer is not TAKEN:
            self._send(200, json.dumps(answer).encode(), "application/json")

    do_POST = do_GET  # noqa: N815 - as above

    def _answer(self, request: Request) -> Any:
        for method, pattern, function in self.routes:
            match = re.fullmatch(pattern, request.path) if method == self.command else None
            if match:
                return function(request, *match.groups())
        raise ApiError(404, "404 page not found")

    def _send(self, status: int, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: Any) -> None:
        """Say nothing: the server polls several times a second."""


def upload(request: Request) -> tuple[str, bytes]:
    """File name and content of a form whose one field is the file `archive`. Raises ApiError 400.

    Source: dstack, runner/internal/runner/api/http.go.
    """
    boundary = _match(r'boundary="?([^";]+)', request.handler.headers.get("Content-Type", ""))
    if boundary is None:
        raise ApiError(400, "missing boundary")
    parts = request.body.split(b"--" + boundary.encode())
    if len(parts) != 3:  # before, the one field, the end
        raise ApiError(400, f"one form field expected, got {len(parts) - 2}")
    head, _, content = parts[1].partition(b"\r\n\r\n")
    disposition = head.decode()
    name, file_name = _match(r'[; ]name="([^"]*)"', disposition), _match(r'filename="([^"]+)"', disposition)
    if name != "archive":
        raise ApiError(400, f"unexpected field {name}")
    if file_name is None:
        raise ApiError(400, "missing file name")
    return file_name, content[: -len(b"\r\n")]


def _match(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text)
    return match[1] if match else None
