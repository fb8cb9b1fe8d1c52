"""TCP ports on this machine that nobody has, and nobody is about to take."""

import secrets
from contextlib import suppress
from itertools import islice
from pathlib import Path

from cloudrl.errors import CapacityError, CloudrlError, InputError
from cloudrl.providers.local import processes, state
from cloudrl.transport.tunnel import bind

DEFAULT_DASHBOARD_PORT = 8265
_FIRST_PORT = 20_000


def free_ports(count: int, *, cluster: str, avoid: int | None = None) -> list[int]:
    """Distinct free ports for a cluster, none of those that the kernel gives to outgoing connections.

    Ray makes hundreds of connections before its last process listens; one of them could have taken the port.

    Raises:
        CapacityError: there are not that many.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    quiet = range(_FIRST_PORT, first) if first > _FIRST_PORT + 1000 else range(_FIRST_PORT, 65_536)
    candidates = secrets.SystemRandom().sample(quiet, len(quiet))
    free = list(islice((port for port in candidates if port != avoid and not is_taken(port, cluster)), count))
    if len(free) < count:
        raise CapacityError(f"{count} free ports are needed, and this machine has {len(free)} of them")
    return free


def dashboard_port(wanted: int | None, *, cluster: str) -> int:
    """The port that was asked for, or Ray's own default where that is free, or any.

    Raises:
        InputError: the port that was asked for is none, or in use.
    """
    if wanted is None:
        default_is_taken = is_taken(DEFAULT_DASHBOARD_PORT, cluster)
        return free_ports(1, cluster=cluster)[0] if default_is_taken else DEFAULT_DASHBOARD_PORT
    if not 1 <= wanted <= 65_535:
        raise InputError(f"--dashboard-port {wanted} is not a port number", hint="A number from 1024 to 65535")
    if is_taken(wanted, cluster):
        raise InputError(
            f"port {wanted} on this machine is in use, or not for this user",
            hint="Take another --dashboard-port, or leave it out for a free one",
        )
    return wanted


def is_taken(port: int, cluster: str) -> bool:
    """Whether this user cannot listen at a port, or a cluster of another name will once it has come up."""
    bound = bind(port)
    if bound is None:
        return True
    bound.close()
    for name in state.names():
        with suppress(CloudrlError):  # a state that cannot be read has no ports to be kept free
            other = state.read(name) if name != cluster else None
            if other is not None and port in other.ports and processes.of_cluster(other.id):
                return True
    return False
