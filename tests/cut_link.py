"""A link between a client and a port of this machine that can be cut: at once, after some bytes, and for a while."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from quiet_ports import free_ports


class CutLink:
    """Listens at `port` and passes everything on to `to`."""

    def __init__(self, to: int) -> None:
        self.to = to
        self.passed = 0
        """Bytes that have gone to the client."""
        self.connections = 0
        self.cut_at: list[int] = []
        """At each of these counts of passed bytes the link breaks once."""
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        [self.port] = free_ports(1)
        self.up()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def up(self) -> None:
        """Listen, on the port of last time."""
        listener = self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def down(self) -> None:
        """Stop listening and cut what is open."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        with self._lock:
            for each in list(self._open):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            client,
            socket.create_connection(("127.0.0.1", self.to)) as server,
            self._known(client, server),
        ):
            back = threading.Thread(target=self._pass_on, args=(client, server, False), daemon=True)
            back.start()
            self._pass_on(server, client, True)
            for each in (client, server):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            back.join()

    @contextlib.contextmanager
    def _known(self, *sockets: socket.socket) -> Iterator[None]:
        with self._lock:
            self._open.update(sockets)
        try:
            yield
        finally:
            with self._lock:
                self._open.difference_update(sockets)

    def _pass_on(self, source: socket.socket, to: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(16 << 10):
                if counted and self._breaks(len(chunk)):
                    to.sendall(chunk[: len(chunk) // 2])
                    return
                to.sendall(chunk)
                self.passed += len(chunk) * counted
        with contextlib.suppress(OSError):
            to.shutdown(socket.SHUT_WR)

    def _breaks(self, count: int) -> bool:
        if self.cut_at and self.passed + count > self.cut_at[0]:
            self.cut_at.pop(0)
            return True
        return False

    def __enter__(self) -> CutLink:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()
