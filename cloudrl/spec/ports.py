"""Ports that dstack forwards to the user's machine, and servers of the user's that answer at one on every node.

Source of the rules for `8080`, `80:8080` and `*:8080`: dstack 0.22.5, core/models/configurations.py (PortMapping).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cloudrl.errors import SpecError
from cloudrl.protocol.options import Ports, Service
from cloudrl.spec.fields import command, unique_list_of

_OURS = Ports()
RAY_PORT, AGENT_PORT = _OURS.dashboard, _OURS.agent
_TAKEN = {
    _OURS.dashboard: "Ray's dashboard",
    _OURS.agent: "the node agent",
    _OURS.gcs: "Ray's control store",
    _OURS.client: "Ray's client server",
    _OURS.dashboard_agent: "Ray's dashboard agent",
    # dstack 0.22.5, core/consts.py
    10022: "dstack's ssh server",
    10998: "dstack's shim",
    10999: "dstack's runner",
}
_PORT = re.compile(r"(?:([0-9]{1,5}|\*):)?([0-9]{1,5})")
_EXAMPLES = "For example 6006, '16006:6006' (local:container) or '*:6006' (any free local port)"
_SERVICE_EXAMPLE = "The port at which it answers, and the command that it is, for example '8000:bash launch.sh'"


@dataclass(frozen=True)
class Port:
    """`container` is forwarded to `local` on the user's machine; None lets dstack take a free one."""

    local: int | None
    container: int

    @classmethod
    def parse(cls, value: object) -> Port:
        """Read `8080`, `80:8080` or `*:8080`.

        Raises:
            SpecError: `value` is none of these, or a number is no port.
        """
        written = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        match = _PORT.fullmatch(written) if isinstance(written, str) else None
        if match is None:
            raise SpecError(f"{value!r} is not a port", hint=_EXAMPLES)
        container = _port_number(match[2])
        if match[1] == "*":
            return cls(None, container)
        return cls(_port_number(match[1]) if match[1] else container, container)

    def __str__(self) -> str:
        if self.local == self.container:
            return str(self.container)
        return f"{'*' if self.local is None else self.local}:{self.container}"


def _port_number(digits: str) -> int:
    if not 1 <= int(digits) <= 65535:
        raise SpecError(f"{int(digits)} is not a port", hint="A whole number from 1 to 65535")
    return int(digits)


def all_ports(ports: tuple[Port, ...]) -> tuple[Port, ...]:
    """Ray's dashboard and the agent, where `ports` do not map them elsewhere, and then the others."""
    ours = [
        next((port for port in ports if port.container == number), Port(number, number))
        for number in (RAY_PORT, AGENT_PORT)
    ]
    return (*ours, *(port for port in ports if port not in ours))


_port_list = unique_list_of(Port.parse, by=lambda port: port.container, message="container port {} stands twice")


def port_texts(value: object) -> tuple[str, ...]:
    """A list of ports, each in its usual spelling.

    Raises:
        SpecError: an item is no port, or two of them collide with each other or with Ray's and the agent's.
    """
    ports = _port_list(value)
    together = all_ports(ports)
    for port in together:
        same = [other for other in together if port.local is not None and other.local == port.local]
        if len(same) > 1:
            raise SpecError(
                f"local port {port.local} is taken twice: by {same[0].container} and {same[1].container}",
                hint=f"Ray is at {RAY_PORT} and the agent at {AGENT_PORT}, unless mapped: '9265:{RAY_PORT}'",
            )
    return tuple(str(port) for port in ports)


def parse_service(value: object) -> Service:
    """Read `8000:bash launch.sh`.

    Raises:
        SpecError: `value` is not that, or the port is Ray's, the agent's or dstack's.
    """
    match = re.fullmatch(r"\s*([0-9]{1,5})\s*:(.*)", value, re.DOTALL) if isinstance(value, str) else None
    if match is None:
        raise SpecError(f"{value!r} is not a service", hint=_SERVICE_EXAMPLE)
    port = _port_number(match[1])
    holder = "Ray's workers" if 20000 <= port < 30000 else _TAKEN.get(port)
    if holder is not None:
        raise SpecError(f"{value!r}: port {port} belongs to {holder}", hint="Another one, for example 8000")
    return Service(port, command(match[2]))


_service_list = unique_list_of(
    parse_service, by=lambda service: service.port, message="two services have port {}", hint="Give each one its own"
)


def service_texts(value: object) -> tuple[str, ...]:
    """A list of services, each in its usual spelling.

    Raises:
        SpecError: an item is no service, or two of them have one port.
    """
    return tuple(map(str, _service_list(value)))
