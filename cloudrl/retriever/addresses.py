"""Addresses of servers."""

import contextlib
import ipaddress
import socket
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from cloudrl.errors import InputError


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read `HOST:PORT`, or `[HOST]:PORT` for IPv6.

        Raises:
            ValueError: the text is not an address.
        """
        parts = urlsplit(f"//{text}")
        if not parts.hostname or not parts.port or parts.netloc != text or "@" in text:
            raise ValueError(f"{text!r} is not HOST:PORT")
        return cls(parts.hostname, parts.port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextlib.contextmanager
def bind(address: Address, *, hint: str) -> Iterator[socket.socket]:
    """Take a port for the block, 0 for any that is free. No client can connect before the socket listens.

    Args:
        address: of this machine.
        hint: for the case that it cannot be used.

    Raises:
        InputError: it cannot be used.
    """
    with contextlib.ExitStack() as held:
        with refusals(address, hint=hint):
            family, *_, sockaddr = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
            taken = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(sockaddr)
            if address.port:  # Linux gives a port twice while no process listens, but not to two UDP sockets
                held.enter_context(socket.socket(family, socket.SOCK_DGRAM)).bind(sockaddr)
        yield taken


@contextlib.contextmanager
def refusals(address: Address, *, hint: str) -> Iterator[None]:
    """Name the address that the block cannot use.

    Raises:
        InputError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{address} cannot be used: {error.strerror}", hint=hint) from error
