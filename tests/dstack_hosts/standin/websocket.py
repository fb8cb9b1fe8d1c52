"""The server's side of a websocket (RFC 6455), as far as the log stream needs it."""

from __future__ import annotations

import base64
import hashlib
import http.server
import struct
import threading
from typing import BinaryIO

_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
BINARY, CLOSE, PING, PONG = 2, 8, 9, 10


class Websocket:
    """An upgraded connection. Pings are answered in a thread of their own; `gone` is set when the peer leaves."""

    def __init__(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        self._socket = handler.connection
        self._lock = threading.Lock()
        self.gone = threading.Event()
        handler.send_response(101)
        handler.send_header("Upgrade", "websocket")
        handler.send_header("Connection", "Upgrade")
        handler.send_header("Sec-WebSocket-Accept", accept_key(handler.headers["Sec-WebSocket-Key"]))
        handler.end_headers()
        handler.close_connection = True
        threading.Thread(target=self._read, args=(handler.rfile,), daemon=True).start()

    def send(self, data: bytes) -> None:
        """One binary message. Raises OSError when the peer has gone."""
        self._frame(BINARY, data)

    def close(self) -> None:
        """Say good-bye; a peer that has gone is left alone."""
        try:
            self._frame(CLOSE, b"")
        except OSError:
            self.gone.set()

    def _frame(self, opcode: int, data: bytes) -> None:
        with self._lock:
            self._socket.sendall(encode_frame(opcode, data))

    def _read(self, stream: BinaryIO) -> None:
        try:
            while True:
                opcode, data = decode_frame(stream)
                if opcode == PING:
                    self._frame(PONG, data)
                if opcode == CLOSE:
                    break
        except (OSError, EOFError, ValueError):
            pass  # it has gone, which is what this thread is to find out
        self.gone.set()


def accept_key(key: str) -> str:
    """What proves to the client that the server speaks the protocol."""
    return base64.b64encode(hashlib.sha1((key + _MAGIC).encode()).digest()).decode()


def encode_frame(opcode: int, data: bytes) -> bytes:
    """One unmasked, final frame."""
    size = len(data)
    if size < 126:
        head = bytes([size])
    elif size < 1 << 16:
        head = struct.pack("!BH", 126, size)
    else:
        head = struct.pack("!BQ", 127, size)
    return bytes([0x80 | opcode]) + head + data


def decode_frame(stream: BinaryIO) -> tuple[int, bytes]:
    """Read one frame, masked or not: its opcode and its content. Raises EOFError."""
    first, second = _exactly(stream, 2)
    size = second & 127
    if size == 126:
        size = struct.unpack("!H", _exactly(stream, 2))[0]
    elif size == 127:
        size = struct.unpack("!Q", _exactly(stream, 8))[0]
    mask = _exactly(stream, 4) if second & 128 else bytes(4)
    data = _exactly(stream, size)
    return first & 15, bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data
