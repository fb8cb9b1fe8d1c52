"""Servers of the user's that run beside Ray on every node: `8000:bash retrieval_launch.sh`."""

from __future__ import annotations

import re

from cloudrl.errors import SpecError
from cloudrl.protocol.options import Ports, Service
from cloudrl.spec.fields import command, list_of
from cloudrl.spec.ports import port_number

_EXAMPLE = "The port at which it answers, and the command that it is, for example '8000:bash launch.sh'"
_PORTS = Ports()
_TAKEN = {
    _PORTS.dashboard: "Ray's dashboard",
    _PORTS.agent: "the node agent",
    _PORTS.gcs: "Ray's control store",
    _PORTS.client: "Ray's client server",
    _PORTS.dashboard_agent: "Ray's dashboard agent",
    # dstack 0.22.5, core/consts.py
    10022: "dstack's ssh server",
    10998: "dstack's shim",
    10999: "dstack's runner",
}


def parse_service(value: object) -> Service:
    """Read `8000:bash launch.sh`.

    Raises:
        SpecError: `value` is not that, or the port is Ray's, the agent's or dstack's.
    """
    match = re.fullmatch(r"\s*([0-9]{1,5})\s*:(.*)", value, re.DOTALL) if isinstance(value, str) else None
    if match is None:
        raise SpecError(f"{value!r} is not a service", hint=_EXAMPLE)
    port = port_number(int(match[1]))
    holder = "Ray's workers" if 20000 <= port < 30000 else _TAKEN.get(port)
    if holder is not None:
        raise SpecError(f"{value!r}: port {port} belongs to {holder}", hint="Another one, for example 8000")
    return Service(port, command(match[2]))


def service_texts(value: object) -> tuple[str, ...]:
    """A list of services, each in its usual spelling.

    Raises:
        SpecError: an item is no service, or two of them have one port.
    """
    services = list_of(parse_service)(value)
    for one in services:
        if sum(one.port == other.port for other in services) > 1:
            raise SpecError(f"two services have port {one.port}", hint="Give each one its own")
    return tuple(str(one) for one in services)
