"""Ports that stay free while no server of a test listens at them."""

import contextlib
import random
import socket
import threading

_RANGE = range(12_000, 20_000)
"""Below those of local clusters, and of outgoing connections, which may take a port that has just become free."""
_given_out: set[int] = set()
_giving_out = threading.Lock()


def free_ports(count: int) -> list[int]:
    """Ports that are free. None is given out twice.

    Scenarios run side by side: between this look and a cluster's own bind another one would take it for free too.
    """
    ports: list[int] = []
    with _giving_out:
        while len(ports) < count:
            port = random.SystemRandom().choice(_RANGE)
            with contextlib.suppress(OSError), socket.socket() as probe:
                probe.bind(("", port))
                if port not in _given_out:
                    _given_out.add(port)
                    ports.append(port)
    return ports
