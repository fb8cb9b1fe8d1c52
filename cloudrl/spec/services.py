"""Servers of the user's that run beside Ray on every node: `8000:bash retrieval_launch.sh`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cloudrl.errors import SpecError
from cloudrl.spec.fields import command, list_of
from cloudrl.spec.ports import AGENT_PORT, RAY_PORT, port_number

_WRITTEN = re.compile(r"\s*([0-9]{1,5})\s*:(.*)", re.DOTALL)
_EXAMPLE = "The port at which it answers, and the command that it is, for example '8000:bash launch.sh'"
_TAKEN = {
    RAY_PORT: "Ray's dashboard",
    AGENT_PORT: "the node agent",
    6379: "Ray's control store",
    10001: "Ray's client server",
    52365: "Ray's dashboard agent",
    10022: "dstack's ssh server",
    10998: "dstack's shim",
    10999: "dstack's runner",
}
"""cloudrl/node/options.py: Ports; dstack 0.22.5, core/consts.py."""
_RAY_WORKERS = range(20000, 30000)


@dataclass(frozen=True)
class Service:
    """One server, the same on every node."""

    port: int
    """Where it answers on its own node; READY waits for that."""
    command: str
    """A shell command that stays in the foreground."""

    @classmethod
    def parse(cls, value: object) -> Service:
        """Read `8000:bash launch.sh`.

        Raises:
            SpecError: `value` is not that, or the port is Ray's, the agent's or dstack's.
        """
        match = _WRITTEN.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise SpecError(f"{value!r} is not a service", hint=_EXAMPLE)
        port = port_number(int(match[1]))
        holder = "Ray's workers" if port in _RAY_WORKERS else _TAKEN.get(port)
        if holder is not None:
            raise SpecError(
                f"{value!r}: port {port} belongs to {holder}", hint="Another one, for example 8000"
            )
        return cls(port, command(match[2]))

    def __str__(self) -> str:
        return f"{self.port}:{self.command}"


def service_texts(value: object) -> tuple[str, ...]:
    """A list of services, each in its usual spelling.

    Raises:
        SpecError: an item is no service, or two of them have one port.
    """
    services = list_of(Service.parse)(value)
    for one in services:
        if sum(one.port == other.port for other in services) > 1:
            raise SpecError(f"two services have port {one.port}", hint="Give each one its own")
    return tuple(str(one) for one in services)
