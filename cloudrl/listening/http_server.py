"""A thread for each admitted connection, with Python's own request handlers."""

from __future__ import annotations

import io
import socketserver
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from cloudrl.listening import heads
from cloudrl.listening.acceptor import DEFAULT_LIMITS, Acceptor, Limits


class HttpServer(ThreadingHTTPServer):
    """Serves one address until it is shut down.

    Args:
        address: Host and port, 0 for a free one.
        handler: Class for one connection.
        refusal_of: See `Acceptor`; usually made by `heads.refusals`.
        limits: Of connections that are not admitted yet.

    Raises:
        OSError: The address cannot be used.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(
        self,
        address: Tuple[str, int],
        handler: Callable[..., ConnectionHandler],
        refusal_of: Callable[[bytes], Optional[bytes]],
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.request_queue_size = limits.backlog
        self._heads: Dict[Any, bytes] = {}
        super().__init__(address, handler)
        self._acceptor = Acceptor(
            self.socket, is_complete=heads.is_complete, refusal_of=refusal_of, hand_over=self._start,
            is_welcome=self.is_welcome, limits=limits,
        )  # fmt: skip

    def server_bind(self) -> None:
        """Bind, without the base class's question to DNS for the name of the address."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def is_welcome(self, address: Any) -> bool:  # noqa: ARG002  for subclasses
        """Whether an address gets any answer."""
        return True

    def serve_forever(self, _poll_s: float = 0.0) -> None:
        """Serve until `shutdown` is called from another thread."""
        self._acceptor.serve_forever()

    def shutdown(self) -> None:
        """End `serve_forever`. Calls under way go on."""
        self._acceptor.close()

    def received_from(self, connection: Any) -> bytes:
        """What has been read of a connection before it was handed over; given once."""
        return self._heads.pop(connection, b"")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print a traceback for our own mistakes, and nothing for a connection that breaks.

        dstack ends a run after 50 MB of output in an hour.
        """
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def _start(self, connection: Any, address: Any, received: bytes) -> None:
        connection.setblocking(True)
        self._heads[connection] = received
        try:
            self.process_request(connection, address)
        except RuntimeError:  # no thread can be started; the client asks again
            self._heads.pop(connection, None)
            self.shutdown_request(connection)


class ConnectionHandler(BaseHTTPRequestHandler):
    """One admitted connection of an `HttpServer`."""

    server: HttpServer
    timeout = 60.0
    """Seconds for each read and each write."""

    def setup(self) -> None:
        """Read from the first byte on, although the server has read some already."""
        super().setup()
        received, rest = self.server.received_from(self.request), self.rfile
        # a buffer that takes all of it, so that no more than one `read1` is needed to get at what came after a head
        size = max(io.DEFAULT_BUFFER_SIZE, len(received))
        self.rfile = io.BufferedReader(_Resumed(received, rest.detach()), size)

    def answer(self, status: int, kind: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a whole answer to a browser, which is to keep nothing of it and to guess nothing about it.

        Args:
            status: of HTTP.
            kind: Content type of the body.
            body: all of it.
            headers: others.
        """
        self.send_response(status)
        usual = {
            "Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
        }  # fmt: skip
        for name, value in {**usual, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        """What the header `Server` says."""
        return heads.SERVER_NAME

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class names it so
        """Print nothing: dstack fails a run after 50 MB of output in an hour."""


class _Resumed(io.RawIOBase):
    """A stream after some of it has been read."""

    def __init__(self, received: bytes, rest: io.RawIOBase) -> None:
        self._received, self._rest = memoryview(received), rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Optional[int]:
        if not self._received:
            return self._rest.readinto(buffer)
        count = min(len(buffer), len(self._received))
        buffer[:count], self._received = self._received[:count], self._received[count:]
        return count

    def close(self) -> None:
        self._rest.close()
        super().close()
