"""Ports of this machine's loopback at which tunnels and clusters are reached."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from cloudrl.errors import ConnectionFailed

_TRIES = 100


@dataclass(frozen=True)
class HeldPorts:
    """Local ports that no other tunnel, and no cluster on this machine, takes before `close`.

    A tunnel's ssh listens at them; they are held while it does not, so that it finds them again after a break. Linux
    lets several sockets have one port of TCP as long as none listens there, but not one of UDP: that is the mark. The
    socket of TCP keeps off programs that share no port, and outgoing connections (net/ipv4/inet_hashtables.c:
    __inet_hash_connect).

    Attributes:
        numbers: the wanted port -> the one that is held.
    """

    numbers: Mapping[int, int]
    _held: ExitStack

    def close(self) -> None:
        """Let others have them."""
        self._held.close()


def hold_ports(wanted: Sequence[int]) -> HeldPorts:
    """A local port for each wanted one: the same number if it is free, otherwise any.

    Raises:
        ConnectionFailed: this machine has no free port.
    """
    numbers = {}
    with ExitStack() as held:
        for port in wanted:
            for candidate in (port, *[0] * _TRIES):
                if (number := _hold(candidate, held)) is not None:
                    numbers[port] = number
                    break
            else:
                raise ConnectionFailed("no free port on this machine")
        return HeldPorts(numbers, held.pop_all())


def _hold(port: int, held: ExitStack) -> int | None:
    """Take a port until the stack is closed; its number, or None where it is not free."""
    bound = bind(port)
    if bound is None:
        return None
    number = int(bound.getsockname()[1])
    mark = _mark(number)
    if mark is None:
        bound.close()
        return None
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so that ssh can listen there
    for each in (bound, mark):
        held.enter_context(each)
    return number


def bind(port: int) -> socket.socket | None:
    """Take a port, 0 for any; None when it is held, somebody listens there on any address, or this user may not.

    A tunnel that has just ended leaves connections in TIME_WAIT for a minute: as ssh does, they are passed over.
    """
    if port:
        mark = _mark(port)
        if mark is None:
            return None
        mark.close()
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1 if port else 0)
        bound.bind(("0.0.0.0", port))  # noqa: S104  bound, never listened on
    except OSError:
        bound.close()
        return None
    return bound


def listens(port: int) -> bool:
    """Whether somebody listens on this port of the loopback. Connects and hangs up."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _mark(port: int) -> socket.socket | None:
    """See `HeldPorts`; None where somebody has it."""
    mark = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        mark.bind(("127.0.0.1", port))
    except OSError:
        mark.close()
        return None
    return mark
