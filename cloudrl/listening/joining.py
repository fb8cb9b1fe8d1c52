"""Bytes both ways between a client and a debugger, for hours; each end is noticed."""

import contextlib
import select
import socket
from typing import Dict, Optional

_BUFFER_BYTES = 256 * 1024
_AFTER_HALF_S = 30.0
"""One side has ended, and the other says nothing more: it may have forgotten to."""
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""A peer that has vanished is noticed after two minutes, however long the person thinks."""


def join(left: socket.socket, right: socket.socket, early: bytes = b"", *, after_half_s: float = _AFTER_HALF_S) -> None:
    """Copy until both sides have ended, or one has broken; neither is closed here.

    The end of one direction is passed on as such: the other one goes on.

    Args:
        left: one side.
        right: the other one.
        early: what the left side has sent already, for the right one.
        after_half_s: how long one direction may be silent once the other one has ended.
    """
    for end in (left, right):
        end.setblocking(False)
        keep_alive(end)
    ways = {left: _Way(left, right), right: _Way(right, left)}
    ways[left].buffer += early
    with contextlib.suppress(OSError):
        while not all(way.is_done for way in ways.values()):
            is_half = any(way.is_done for way in ways.values())
            ready = _wait(ways, after_half_s if is_half else None)
            if is_half and not ready:
                return
            for way in ways.values():
                way.move(ready)


class _Way:
    """One direction."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source, self.target, self.buffer = source, target, bytearray()
        self.ended = self.is_done = False

    @property
    def reads(self) -> bool:
        """Whether there is room, and more may come."""
        return not self.ended and len(self.buffer) < _BUFFER_BYTES

    def move(self, ready: Dict[int, int]) -> None:
        """Take what has come, give what can be given."""
        if self.reads and ready.get(self.source.fileno(), 0) & ~select.POLLOUT:
            with contextlib.suppress(BlockingIOError):
                piece = self.source.recv(65_536)
                self.buffer += piece
                self.ended = not piece
        if self.buffer:
            with contextlib.suppress(BlockingIOError):
                del self.buffer[: self.target.send(self.buffer)]
        if self.ended and not self.buffer and not self.is_done:
            self.is_done = True
            self.target.shutdown(socket.SHUT_WR)


def _wait(ways: Dict[socket.socket, _Way], timeout_s: Optional[float]) -> Dict[int, int]:
    """Descriptors with which something can be done, and what."""
    poll, wanted = select.poll(), dict.fromkeys((way.fileno() for way in ways), 0)
    for way in ways.values():
        wanted[way.source.fileno()] |= select.POLLIN if way.reads else 0
        wanted[way.target.fileno()] |= select.POLLOUT if way.buffer else 0
    for descriptor, events in wanted.items():
        if events:
            poll.register(descriptor, events)
    return dict(poll.poll(None if timeout_s is None else timeout_s * 1000))


def keep_alive(connection: socket.socket) -> None:
    """Ask now and then whether the other side is still there (tcp(7)); nothing for other kinds of sockets."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
