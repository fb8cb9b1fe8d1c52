"""A listener that others cannot exhaust: few connections without the token at once, and none for long."""

import contextlib
import socket
import sys
import threading
import time
from http.server import ThreadingHTTPServer
from typing import Any, Dict, Set, Tuple

MAX_UNAUTHENTICATED = 64
"""Connections on one address that have not shown the token. Those that have are ours and count no more: each of
hundreds of nodes may copy something from rank 0 at once."""
UNAUTHENTICATED_S = 5.0
"""Seconds until a connection must have shown it, however busily it sends."""


class Listener(ThreadingHTTPServer):
    """One address, a thread a connection. The handler calls `trust` once it has seen the right token.

    One too many of these takes the place of the one that has been silent the longest. Were it turned away instead,
    64 silent connections would keep out the heartbeats, which show their token at once.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: Tuple[str, int], handler: Any, unauthenticated_s: float) -> None:
        self._unauthenticated_s = unauthenticated_s
        self._lock = threading.Lock()
        self._unauthenticated: Dict[socket.socket, float] = {}
        self._trusted: Set[socket.socket] = set()
        super().__init__(address, handler)

    def trust(self, connection: socket.socket) -> None:
        """This connection may stay."""
        with self._lock:
            if self._unauthenticated.pop(connection, None) is not None:
                self._trusted.add(connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Called in the listener's own thread for each new connection."""
        with self._lock:
            if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
                self._cut(next(iter(self._unauthenticated)))
            self._unauthenticated[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Called by `serve_forever` between any two looks at the socket."""
        with self._lock:
            before = time.monotonic() - self._unauthenticated_s
            for request in [each for each, since in self._unauthenticated.items() if since < before]:
                self._cut(request)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection before it is closed, so that nobody cuts another one with its number."""
        with self._lock:
            self._unauthenticated.pop(request, None)
            self._trusted.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing for those without the token, nor for connections that break: a port scanner breaks thousands.

        dstack ends a run after 50 MB of output in an hour.
        """
        with self._lock:
            ours = request in self._trusted
        if ours and not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def _cut(self, request: socket.socket) -> None:
        """End one without the token; its thread wakes up and closes. Under the lock."""
        del self._unauthenticated[request]
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)
