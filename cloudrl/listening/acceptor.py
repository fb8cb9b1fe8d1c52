"""Accept connections so that strangers cannot use up the process.

One thread reads what each client sends first, its head. A connection costs one descriptor and a few kilobytes until
its head is admitted; only then does it get a thread or a task.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import selectors
import socket
import threading
import time
import traceback
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional

_PENDING, _PENDING_PER_NODE = 1024, 4
_ACCEPTS_AT_ONCE = 64
"""Between two looks at the connections that wait: those with data are read before more are accepted."""
_TICK_S, _PAUSE_S = 0.25, 0.05
_DRAIN_S, _DRAIN_BYTES = 1.0, 1 << 20
"""A refused client may still be sending. Closed at once, its kernel would discard our answer (RFC 9112, 9.6)."""
_KNOWN_ADDRESSES = 8192
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RECEIVE_BYTES = 65_536


@dataclass(frozen=True)
class Limits:
    """What connections may use before they are admitted.

    Attributes:
        pending: How many may wait at once. Never more than half of the descriptors of the process.
        head_bytes: How much of a head is read.
        head_s: Seconds until the head must be complete, however busily the client sends.
        grace_s: Seconds that a connection is safe when there are too many. A client of ours sends its head at once.
        backlog: Connections that the kernel keeps while none can be accepted; Linux caps it at net.core.somaxconn.
    """

    pending: int = _PENDING
    head_bytes: int = 65_536
    head_s: float = 5.0
    grace_s: float = 0.25
    backlog: int = _PENDING

    @classmethod
    def for_nodes(cls, nodes: int, *, head_s: float = 5.0) -> Limits:
        """Limits of a server that this many nodes may call in the same instant."""
        count = max(_PENDING, _PENDING_PER_NODE * nodes)
        return cls(pending=count, head_s=head_s, backlog=count)


DEFAULT_LIMITS = Limits()


_Group = Dict[socket.socket, "_Pending"]
"""Connections in the order of their arrival. The first of an `OrderedDict` is found at once, however many have gone."""


class _Pending:
    """A connection that has not been admitted."""

    __slots__ = ("address", "arrived", "connection", "discarded_bytes", "group", "received")

    def __init__(self, connection: socket.socket, address: Any, arrived: float) -> None:
        self.connection, self.address, self.arrived = connection, address, arrived
        self.received, self.discarded_bytes = bytearray(), 0
        self.group: _Group = OrderedDict()


class Acceptor:
    """Accepts on one socket, until it is closed.

    When too many connections wait, or descriptors run out, the oldest one is cut: refused ones first, then those from
    addresses that were never admitted, then the others; and none that has data to read, or came within `grace_s`.
    Until one can be cut, new connections wait in the kernel.

    Args:
        listening: A socket that listens. It is not closed here.
        is_complete: Whether these first bytes of a client are all that is needed to decide. The number says how many
            of them were there before: to look through all of them again would cost more the slower they come.
        refusal_of: For a head that is complete or too long: the answer to refuse with (`b""`: just close), or None
            to admit the connection.
        hand_over: Takes an admitted connection, which does not block, its address and all that was read of it.
        is_welcome: Whether an address gets any answer; asked once its head is there, since it may take long to say.
        limits: See there.
    """

    def __init__(
        self,
        listening: socket.socket,
        *,
        is_complete: Callable[[bytearray, int], bool],
        refusal_of: Callable[[bytes], Optional[bytes]],
        hand_over: Callable[[socket.socket, Any, bytes], object],
        is_welcome: Callable[[Any], bool] = lambda _: True,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._listening, self._is_complete, self._refusal_of = listening, is_complete, refusal_of
        self._hand_over, self._is_welcome, self._limits = hand_over, is_welcome, limits
        self._refused: _Group = OrderedDict()
        self._strangers: _Group = OrderedDict()
        self._others: _Group = OrderedDict()
        self._known_addresses: Dict[Any, None] = OrderedDict()
        self._resume_at: Optional[float] = None
        self._is_closing = self._has_reported = False
        self._ended = threading.Event()
        self._ended.set()
        self._waker: Optional[socket.socket] = None

    def serve_forever(self) -> None:
        """Accept until `close` is called. The connections that wait then are closed."""
        self._ended.clear()
        self._listening.setblocking(False)
        self._waker, woken = socket.socketpair()
        try:
            with self._waker, woken, selectors.DefaultSelector() as self._selector:
                self._selector.register(woken, selectors.EVENT_READ)
                self._selector.register(self._listening, selectors.EVENT_READ)
                while not self._is_closing:
                    self._turn()
                for group in (self._refused, self._strangers, self._others):
                    for pending in [*group.values()]:
                        self._drop(pending)
        finally:
            self._ended.set()

    def close(self) -> None:
        """End `serve_forever`, now or when it begins, and wait for its end. Admitted connections are not touched."""
        self._is_closing = True
        if self._waker is not None:
            with contextlib.suppress(OSError):  # it has ended
                self._waker.send(b"x")
        self._ended.wait()

    def _turn(self) -> None:
        is_called = False
        for key, _ in self._selector.select(self._timeout_s()):
            if isinstance(key.data, _Pending):
                self._read(key.data)
            else:
                is_called |= key.fileobj is self._listening
        now = time.monotonic()
        self._expire(now)
        if self._resume_at is not None and now >= self._resume_at:
            self._resume_at = None
            self._selector.register(self._listening, selectors.EVENT_READ)
        elif is_called:
            self._accept()

    def _timeout_s(self) -> Optional[float]:
        if self._resume_at is not None:
            return _PAUSE_S
        return _TICK_S if self._count() else None

    def _count(self) -> int:
        return len(self._refused) + len(self._strangers) + len(self._others)

    # -- accepting ------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = self._limits.pending if soft == resource.RLIM_INFINITY else min(self._limits.pending, soft // 2)
        for accepted in range(_ACCEPTS_AT_ONCE):
            if self._count() >= most:
                if accepted:  # whether another one waits, the next look tells: for none, no other must be cut
                    return
                if not self._make_room():
                    self._pause()
                    return
            try:
                connection, address = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _SHORTAGES and not self._make_room():
                    self._pause()
                    return
            else:
                self._welcome(connection, address)

    def _welcome(self, connection: socket.socket, address: Any) -> None:
        connection.setblocking(False)
        pending = _Pending(connection, address, time.monotonic())
        pending.group = self._others if _host(address) in self._known_addresses else self._strangers
        try:
            self._selector.register(connection, selectors.EVENT_READ, pending)
        except OSError:  # the kernel has no memory left for it
            connection.close()
            return
        pending.group[connection] = pending
        self._read(pending)  # most clients have sent their head by now

    def _pause(self) -> None:
        """Let connections wait in the kernel: looking again at once would be a busy loop."""
        self._selector.unregister(self._listening)
        self._resume_at = time.monotonic() + _PAUSE_S

    def _make_room(self) -> bool:
        """End the connection that can best be spared, unless it is too young."""
        latest = time.monotonic() - self._limits.grace_s
        for group in (self._refused, self._strangers, self._others):
            oldest = next(iter(group.values()), None)
            if oldest is not None and (group is self._refused or oldest.arrived <= latest):
                self._read(oldest)  # its head may have come just now
                if oldest.connection in group:
                    self._drop(oldest)
                return True
        return False

    def _expire(self, now: float) -> None:
        for group, limit_s in (
            (self._refused, _DRAIN_S), (self._strangers, self._limits.head_s), (self._others, self._limits.head_s),
        ):  # fmt: skip
            while group:  # in the order of their arrival
                oldest = next(iter(group.values()))
                if now - oldest.arrived < limit_s:
                    break
                self._drop(oldest)

    # -- one connection -------------------------------------------------------------------------------------

    def _read(self, pending: _Pending) -> None:
        if pending.connection not in pending.group:  # dropped earlier in this turn
            return
        try:
            piece = pending.connection.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._drop(pending)
        elif pending.group is self._refused:
            pending.discarded_bytes += len(piece)
            if pending.discarded_bytes > _DRAIN_BYTES:
                self._drop(pending)
        else:
            before = len(pending.received)
            pending.received += piece
            if self._is_complete(pending.received, before) or len(pending.received) >= self._limits.head_bytes:
                self._decide(pending)

    def _decide(self, pending: _Pending) -> None:
        try:
            refusal = self._refusal_of(bytes(pending.received)) if self._is_welcome(pending.address) else b""
        except Exception:  # noqa: BLE001  a fault in judging one client must not end the server for all others
            self._report_fault()
            refusal = b""
        if refusal is None:
            self._admit(pending)
        elif refusal:
            self._refuse(pending, refusal)
        else:
            self._drop(pending)

    def _admit(self, pending: _Pending) -> None:
        self._selector.unregister(pending.connection)
        del pending.group[pending.connection]
        self._remember(_host(pending.address))
        try:
            self._hand_over(pending.connection, pending.address, bytes(pending.received))
        except Exception:  # noqa: BLE001  as above; also where the system gives no more threads or memory
            self._report_fault()
            pending.connection.close()

    def _refuse(self, pending: _Pending, refusal: bytes) -> None:
        """Answer, and read on for a moment without looking at what comes."""
        try:
            pending.connection.send(refusal)  # less than the kernel's buffer, which is empty
            pending.connection.shutdown(socket.SHUT_WR)
        except OSError:
            self._drop(pending)
            return
        del pending.group[pending.connection]
        pending.group, pending.arrived, pending.received = self._refused, time.monotonic(), bytearray()
        self._refused[pending.connection] = pending

    def _report_fault(self) -> None:
        """Print the first traceback only: whoever has found a way to cause one may cause thousands."""
        if not self._has_reported:
            self._has_reported = True
            traceback.print_exc()

    def _remember(self, host: Any) -> None:
        self._known_addresses.pop(host, None)
        self._known_addresses[host] = None
        if len(self._known_addresses) > _KNOWN_ADDRESSES:
            del self._known_addresses[next(iter(self._known_addresses))]

    def _drop(self, pending: _Pending) -> None:
        self._selector.unregister(pending.connection)
        del pending.group[pending.connection]
        with contextlib.suppress(OSError):
            pending.connection.shutdown(socket.SHUT_RDWR)
        pending.connection.close()


def _host(address: Any) -> Any:
    return address[0] if isinstance(address, tuple) else address
