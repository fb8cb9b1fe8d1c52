"""Ports: those that dstack forwards to the user's machine, and those that are taken on every node.

Source of the rules for `8080`, `80:8080` and `*:8080`: dstack 0.22.5, core/models/configurations.py (PortMapping).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cloudrl.errors import SpecError
from cloudrl.protocol.options import Ports
from cloudrl.spec.fields import unique_list_of
from cloudrl.spec.quoting import quoted

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
ANOTHER_PORT = "Another one, for example 8000"
_EXAMPLES = "For example 6006, '16006:6006' (local:container) or '*:6006' (any free local port)"


@dataclass(frozen=True)
class Port:
    """`container` is forwarded to `local` on the user's machine; None lets dstack take a free one."""

    local: int | None
    container: int

    @classmethod
    def parse(cls, value: object) -> Port:
        """Read `8080`, `80:8080` or `*:8080`.

        Raises:
            SpecError: `value` has another type, or a number is not a port.
        """
        written = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        match = _PORT.fullmatch(written) if isinstance(written, str) else None
        if match is None:
            raise SpecError(f"{quoted(value)} is not a port", hint=_EXAMPLES)
        container = port_number(match[2])
        if match[1] == "*":
            return cls(None, container)
        return cls(port_number(match[1]) if match[1] else container, container)

    def __str__(self) -> str:
        if self.local == self.container:
            return str(self.container)
        return f"{'*' if self.local is None else self.local}:{self.container}"


def port_number(digits: str) -> int:
    """Raises: SpecError: there is no such port."""
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
        SpecError: an item is not a port, or two of them collide with each other or with Ray's and the agent's.
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


def port_holder(port: int) -> str | None:
    """Whose port it is on every node; None for one that a service can have."""
    return "Ray's workers" if 20000 <= port < 30000 else _TAKEN.get(port)
