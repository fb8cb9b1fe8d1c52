"""Ports of this machine that lead to a debugger on a node, for other programs on it."""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cloudrl.debug.socket_owner import NobodyKnows, owner
from cloudrl.errors import CloudrlError
from cloudrl.listening.acceptor import Acceptor, Limits
from cloudrl.listening.joining import join

_HEAD = re.compile(rb"Content-Length: [0-9]{1,9}\r\n\r\n")
"""What a client of the Debug Adapter Protocol sends first: the only header that the protocol has.

debugpy takes a request of HTTP for one of its own, as that header is among the others.
"""
_HEAD_BYTES, _HEAD_S, _PENDING = 64, 10.0, 64
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_UP_TO_THE_USER = r" +\S+ +\S+ +\S+ +\S+ +(\d+)"
_MAPPED = bytes(10) + b"\xff\xff"
"""Before the four bytes of an IPv4 address that a socket of IPv6 uses (RFC 4291, 2.5.5.2)."""


class Relay:
    """A port on loopback; each connection to it is one to the debugger. It listens until it is closed.

    A debugger has no password: other users of this machine are turned away, where the kernel says whose a connection
    is, and so is whatever does not start as a client of the Debug Adapter Protocol does, such as a web page.

    Args:
        dial: gives a connection to the debugger.
        is_own: whether a peer's address belongs to this user.
        head_s: how long a client may take to say what it is.
    """

    def __init__(
        self,
        dial: Callable[[], socket.socket],
        *,
        is_own: Callable[[tuple[str, int], int], bool] | None = None,
        head_s: float = _HEAD_S,
    ) -> None:
        self._dial, owns = dial, is_own or is_own_connection
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._acceptor = Acceptor(
            self._listening,
            is_complete=lambda received, _before: b"\r\n\r\n" in received,
            refusal_of=lambda received: None if _HEAD.match(received) else b"",
            hand_over=self._start,
            is_welcome=lambda address: owns(address, self.port),
            limits=Limits(pending=_PENDING, head_bytes=_HEAD_BYTES, head_s=head_s, backlog=_PENDING),
        )
        threading.Thread(target=self._acceptor.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Take no more connections; those that are open go on until an end closes."""
        self._acceptor.close()
        self._listening.close()

    def _start(self, connection: socket.socket, _address: Any, received: bytes) -> None:
        connection.setblocking(True)
        try:
            threading.Thread(target=self._join, args=(connection, received), daemon=True).start()
        except RuntimeError:  # no thread can be started
            connection.close()

    def _join(self, connection: socket.socket, received: bytes) -> None:
        # the stop may be over, or the cluster gone
        with connection, suppress(CloudrlError, OSError), self._dial() as other:
            join(connection, other, received)


def is_own_connection(peer: tuple[str, int], port: int, *, tables: Sequence[Path] | None = None) -> bool:
    """Whether the other end of a connection to a loopback port is this user's; True if the system does not tell.

    A connection that Linux does not list has no owner: its other end is gone.

    Args:
        peer: address and port of the other end.
        port: ours.
        tables: Linux's tables of connections, proc_pid_net(5); of IPv4, and of IPv6, whose sockets reach us as well.
            None: the kernel is asked, and they are read where it does not answer.
    """
    if tables is None:
        with suppress(NobodyKnows):
            return owner(peer, ("127.0.0.1", port)) == os.getuid()
    read = [text for table in tables or _TABLES if (text := _text_of(table)) is not None]
    if not read:
        return True
    ends = [[form(*end) for end in (peer, ("127.0.0.1", port))] for form in (_address, _mapped)]
    # a search: there can be thousands of rows, and each connection asks
    rows = re.compile("|".join(f" {theirs} {ours}{_UP_TO_THE_USER}" for theirs, ours in ends))
    owners = [int("".join(uids)) for text in read for uids in rows.findall(text)]
    return bool(owners) and all(uid == os.getuid() for uid in owners)


def _text_of(table: Path) -> str | None:
    try:
        return table.read_text()
    except OSError:
        return None


def _address(ip: str, port: int) -> str:
    """As the table has it: four bytes each in the order of the machine."""
    return _row_form(socket.inet_aton(ip), port)


def _mapped(ip: str, port: int) -> str:
    """The same address as a socket of IPv6 has it."""
    return _row_form(_MAPPED + socket.inet_aton(ip), port)


def _row_form(address: bytes, port: int) -> str:
    words = (address[at : at + 4] for at in range(0, len(address), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{port:04X}"
