"""A server on real sockets that looks for a token, calls a method for a path, and can cut its connections."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from fake_cluster import FakeCluster


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    cluster: FakeCluster

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def cut_all(self) -> None:
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that the other side drops are part of the tests."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server
    routes: tuple[tuple[str, str, str], ...]

    def log_message(self, *_: Any) -> None: ...

    def answer(self, method: str) -> None:
        cluster = self.server.cluster
        url = urlsplit(self.path)
        self.query = {key: value[0] for key, value in parse_qs(url.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        cluster.requests.append((method, unquote(url.path)))
        cluster.on_request(method, unquote(url.path))
        given, wanted = self.headers.get("Authorization"), self.token(cluster)
        if wanted is not None and given != f"Bearer {wanted}":
            self.refuse_token(given)
            return
        for verb, pattern, name in self.routes:
            match = re.fullmatch(pattern, url.path)
            if verb == method and match:
                getattr(self, name)(
                    *map(unquote, match.groups()), *([body] if method in ("POST", "PUT") else [])
                )
                return
        self.text(404, "404: Not Found")

    def do_GET(self) -> None:
        self.answer("GET")

    def do_POST(self) -> None:
        self.answer("POST")

    def do_PUT(self) -> None:
        self.answer("PUT")

    def do_DELETE(self) -> None:
        self.answer("DELETE")

    def token(self, cluster: FakeCluster) -> str | None:
        return cluster.token

    def refuse_token(self, given: str | None) -> None:
        raise NotImplementedError

    def json(self, value: Any, status: int = 200) -> None:
        self.send(status, json.dumps(value).encode(), "application/json")

    def text(self, status: int, text: str) -> None:
        self.send(status, text.encode(), "text/plain; charset=utf-8")

    def send(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def cut(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
