"""Who connects to a debugger: it has no password, so users of this node other than ours and root are turned away."""

import os
import socket
import sys
from typing import Any, Callable, List, Tuple

_ESTABLISHED = "01"
_MAPPED = "0000000000000000FFFF0000"
"""Before an IPv4 address of a socket of IPv6 (RFC 4291, 2.5.5.2), as the table has it on a little-endian machine."""


class _Listener(socket.socket):
    __slots__ = ()

    def accept(self) -> Tuple[socket.socket, Any]:
        while True:
            connection, address = super().accept()
            if is_trusted(connection):
                return connection, address
            connection.close()


def guard(listener: socket.socket) -> socket.socket:
    """The same listener, which accepts no further client from now on."""
    listener.__class__ = _Listener
    return listener


def guard_debugpy(sockets: Any) -> None:
    """Have debugpy's adapter, another process of the job, accept no further client either."""
    serve = sockets.serve

    def guarded(name: str, handler: Callable[[socket.socket], Any], *args: Any, **more: Any) -> Any:
        def handle(connection: socket.socket) -> None:
            if is_trusted(connection):
                handler(connection)
            else:
                connection.close()

        return serve(name, handle, *args, **more)

    sockets.serve = guarded


def is_trusted(connection: socket.socket) -> bool:
    """Whether the other end, on this machine, is our own user's or root's.

    A closed one has no owner: Linux has lost its user, and shows it as root's (proc(5), /proc/net/tcp).
    """
    if connection.family != socket.AF_INET:
        return False
    try:
        ends = [_form(*end) for end in (connection.getpeername(), connection.getsockname())]
        rows = _rows("/proc/net/tcp") + _rows("/proc/net/tcp6")
    except OSError:
        return False
    wanted = (ends, [_MAPPED + end for end in ends])
    users = [int(row[7]) for row in rows if row[1:3] in wanted and row[3] == _ESTABLISHED]
    return bool(users) and all(user in (0, os.getuid()) for user in users)


def _rows(table: str) -> List[List[str]]:
    try:
        with open(table, encoding="ascii") as file:
            return [line.split() for line in file][1:]
    except FileNotFoundError:  # a machine without IPv6
        return []


def _form(ip: str, port: int) -> str:
    return f"{int.from_bytes(socket.inet_aton(ip), sys.byteorder):08X}:{port:04X}"
