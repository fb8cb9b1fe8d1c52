"""A host's cable."""

from __future__ import annotations

import socket
import time

from .root import run

_WAIT_FOR_LINK_S = 20.0


def connect(address: str, gateway: str) -> None:
    """Wait for the cable, then configure it: the lab makes it once this process exists.

    Args:
        address: with the bits of its network.
        gateway: where packets for elsewhere go.
    """
    deadline = time.monotonic() + _WAIT_FOR_LINK_S
    while "eth0" not in {name for _, name in socket.if_nameindex()}:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{socket.gethostname()}: no eth0 after {_WAIT_FOR_LINK_S:.0f} s")
        time.sleep(0.01)
    run("ip", "link", "set", "lo", "up")
    run("ip", "addr", "add", address, "dev", "eth0")
    run("ip", "link", "set", "eth0", "up")
    run("ip", "route", "add", "default", "via", gateway)
