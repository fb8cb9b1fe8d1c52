"""The stand-in cluster of `cloudrl.testing` behind real sockets, which can be cut."""

import contextlib
import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cloudrl.errors import ConnectionFailed
from cloudrl.listening.joining import join
from cloudrl.protocol.exchange import Request, Response


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, answer: Callable[[Request], Response]) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.answer = answer
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def close(self) -> None:
        """Stop listening and cut what is open."""
        self.shutdown()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that the other side drops are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: Any) -> None: ...

    def __getattr__(self, name: str) -> Callable[[], None]:
        """The base class looks for do_VERB."""
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.server.answer(Request(self.command, self.path, dict(self.headers.items()), body)) as answer:
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.status == 101:
                self.end_headers()
                self.close_connection = True
                join(self.connection, answer.stream)
                return
            is_chunked = "Content-Length" not in answer.headers
            if is_chunked:
                self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for piece in iter(answer.stream.read1, b""):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if is_chunked else piece)
            except ConnectionFailed:  # it is to be cut
                self.close_connection = True
                with contextlib.suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)
                return
            if is_chunked:
                self.wfile.write(b"0\r\n\r\n")
