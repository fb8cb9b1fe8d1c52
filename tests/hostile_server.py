"""A server that answers every request in one hostile way, and counts the bytes that a client takes from it."""

import contextlib
import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

_PIECE = b"[" + b"0," * 32_000
Body = Callable[["Hostile", socket.socket], None]


@dataclass
class Hostile:
    """One server.

    Attributes:
        answer: what it does with each connection, once the head of the request has come.
        sent_bytes: those that the kernel has taken from it, of all connections.
        requests: the first line of each.
    """

    answer: Body
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    sent_bytes: int = 0
    requests: list[str] = field(default_factory=list)
    is_over: bool = False

    def __post_init__(self) -> None:
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def send(self, connection: socket.socket, data: bytes) -> None:
        connection.sendall(data)
        self.sent_bytes += len(data)

    def serve(self) -> None:
        with contextlib.suppress(OSError):
            while not self.is_over:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                piece = connection.recv(65_536)
                if not piece:
                    return
                head += piece
            self.requests.append(head.split(b"\r\n", 1)[0].decode())
            self.answer(self, connection)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):  # no reset, which would take what was sent from the client
                pass


@contextlib.contextmanager
def hostile(answer: Body) -> Iterator[Hostile]:
    """Serve until the block ends."""
    server = Hostile(answer)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.is_over = True
        server.listener.shutdown(socket.SHUT_RDWR)
        server.listener.close()
        thread.join(2)


def answering(body: bytes, status: str = "200 OK", **headers: str) -> Body:
    """With this body."""
    named = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return lambda server, connection: server.send(connection, f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body)


def without_end(head: bytes, piece: bytes = _PIECE) -> Body:
    """This head, and then the same piece until the server is over."""

    def body(server: Hostile, connection: socket.socket) -> None:
        server.send(connection, head)
        while not server.is_over:
            server.send(connection, piece)

    return body


def _dribble(server: Hostile, connection: socket.socket, data: bytes) -> None:
    while not server.is_over:
        server.send(connection, data)
        time.sleep(0.02)


def dribbling(server: Hostile, connection: socket.socket) -> None:
    """A few bytes at a time."""
    server.send(connection, b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nConnection: close\r\n\r\n")
    _dribble(server, connection, b" ")


def dribbling_head(server: Hostile, connection: socket.socket) -> None:
    """A head, a byte at a time."""
    server.send(connection, b"HTTP/1.1 200 OK\r\nX-Long: ")
    _dribble(server, connection, b"x")


def dribbling_continues(server: Hostile, connection: socket.socket) -> None:
    """Heads that announce another one."""
    _dribble(server, connection, b"HTTP/1.1 100 Continue\r\n\r\n")


DRIBBLING = {each.__name__: each for each in (dribbling, dribbling_head, dribbling_continues)}
"""Ended by a time limit: tests give a short one."""
ENDLESS = {
    "json": without_end(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"),
    "with_length": without_end(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\nConnection: close\r\n\r\n"),
    "chunks": without_end(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        b"%x\r\n%s\r\n" % (len(_PIECE), _PIECE),
    ),
    "refusal": without_end(b"HTTP/1.1 500 Oops\r\nConnection: close\r\n\r\n"),
    "head": without_end(b"HTTP/1.1 200 OK\r\n", b"X-More: " + b"x" * 1000 + b"\r\n"),
}
_NESTED = b"[" * 5000 + b"]" * 5000
_BOMB = gzip.compress(b"[" + b"0," * 30_000_000 + b"0]")
WRONG = {
    "nothing": answering(b""),
    "null": answering(b"null"),
    "five": answering(b"5"),
    "a list": answering(b"[1,2,3]"),
    "a list of nulls": answering(b"[null]"),
    "an empty object": answering(b"{}"),
    "deep": answering(_NESTED),
    "deep below a key": answering(b'{"ray_version": ' + _NESTED + b"}"),
    "deep jobs": answering(b'[{"submission_id": "a", "runtime_env": ' + _NESTED + b"}]"),
    "a huge integer": answering(b'[{"submission_id": "a", "start_time": ' + b"9" * 10_000 + b"}]"),
    "a huge float": answering(b'[{"submission_id": "a", "start_time": 1e300}]'),
    "a late time": answering(b'[{"submission_id": "a", "start_time": 99999999999999999}]'),
    "wrong types": answering(
        json.dumps([{"submission_id": "a", "start_time": "x", "metadata": [1], "runtime_env": 5}]).encode()
    ),
    "null in data": answering(b'{"data": null, "cluster": null, "nodes": null}'),
    "lists for objects": answering(b'{"data": [], "cluster": [], "nodes": {}, "locations": 5, "result": "x"}'),
    "a lone surrogate": answering(b'[{"submission_id": "\\ud800", "status": "\\udfff"}]'),
    "a gzip bomb": answering(_BOMB, Content_Encoding="gzip"),
    "a bomb in a bomb": answering(gzip.compress(_BOMB), Content_Encoding="gzip, gzip"),
    "too long a length": answering(b"[]", Content_Length="1000"),
    "a length of 10,000 digits": answering(b"[]", Content_Length="9" * 10_000),
    "a negative length": answering(b"[]", Content_Length="-1"),
    "302": answering(b"", "302 Found", Location="http://127.0.0.1:9/"),
    "500 in nested JSON": answering(_NESTED, "500 Oops"),
    "404 of null": answering(b"null", "404 Not Found"),
}
