"""Whose the other end of a connection on this machine is, asked of Linux itself for one connection: sock_diag(7).

Linux's tables of connections say it, too, but take 10 ms to read however few there are: strangers that connect
1,300 times would keep a user waiting for a minute.
"""

import errno
import os
import socket
import struct

_SOCK_DIAG, _BY_FAMILY, _REQUEST, _ERROR = 4, 20, 1, 2
_HEAD = struct.Struct("=IHHII")
_ASKED = struct.Struct("=BBBBI")
_NO_COOKIE = struct.pack("=I8s", 0, b"\xff" * 8)
_UID_AT = _HEAD.size + 4 + 48 + 3 * 4
"""After family, state, timer and retransmits, the two ends, and three numbers (linux/inet_diag.h: inet_diag_msg)."""
_TIMEOUT_S = 1.0


class NobodyKnows(Exception):
    """The kernel does not answer such questions."""


def owner(end: tuple[str, int], other: tuple[str, int]) -> int | None:
    """The user id of the IPv4 socket that connects `end` to `other`. None without such a socket.

    Raises:
        NobodyKnows: This is not Linux, or it is not allowed to say.
    """
    ports = struct.pack("!HH", end[1], other[1])
    places = [socket.inet_aton(ip).ljust(16, b"\0") for ip, _ in (end, other)]
    asked = _ASKED.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 0xFFFF_FFFF) + ports + b"".join(places) + _NO_COOKIE
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
            kernel.settimeout(_TIMEOUT_S)
            kernel.sendto(_HEAD.pack(_HEAD.size + len(asked), _BY_FAMILY, _REQUEST, 1, 0) + asked, (0, 0))
            reply = kernel.recv(8192)
        if _HEAD.unpack_from(reply)[1] == _ERROR:
            number = -struct.unpack_from("=i", reply, _HEAD.size)[0]
            if number == errno.ENOENT:
                return None
            raise NobodyKnows(os.strerror(number))
        uid: int = struct.unpack_from("=I", reply, _UID_AT)[0]
    except (OSError, AttributeError, struct.error) as error:
        raise NobodyKnows(str(error)) from None
    return uid
