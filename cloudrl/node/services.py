"""The user's own servers, which run beside Ray on every node: a retrieval server, a sandbox, a judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, List, Tuple

from cloudrl.errors import InputError
from cloudrl.node.ray import probe

if TYPE_CHECKING:
    from cloudrl.node.agent import Agent
    from cloudrl.node.failure import NodeFailed
    from cloudrl.node.process import Child

_LOOPBACK = "127.0.0.1"
_PORTS_ARE_FREE_AFTER_S = 3.0
_ANSWERS_WITHIN_S = 1.0


@dataclass(frozen=True)
class Service:
    """One server: the TCP port at which it answers on its own node, and the shell command that it is.

    The command stays in the foreground: its end, also with status 0, is the end of the node.
    """

    port: int
    command: str

    @property
    def answers(self) -> bool:
        """Whether somebody takes connections at its port."""
        return probe(_LOOPBACK, self.port, _ANSWERS_WITHIN_S) == "open"


def parse_service(text: str) -> Service:
    """Read `8000:bash launch.sh`.

    Raises:
        InputError: there is no port before the first colon, or no command behind it.
    """
    port, _, command = text.partition(":")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536 and command.strip()):
        raise InputError(f"{text!r} is not PORT:COMMAND, for example '8000:bash launch.sh'")
    return Service(int(port), command)


class Services:
    """The services of one node, for its agent, which calls everything here from its main thread."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._running: List[Tuple[Service, Child]] = []

    def start(self, child: Callable[[List[str], str], Child]) -> None:
        """Start all of them; `child(command, log)` makes a process that is ended with the node.

        Raises:
            NodeFailed: somebody answers at one of the ports already, and would be taken for the service.
        """
        services = self._agent.options.services
        self._agent.wait_for(
            lambda: not any(each.answers for each in services), _PORTS_ARE_FREE_AFTER_S, self._taken, 0.5
        )
        for each in services:
            self._running.append((each, child(["/bin/sh", "-c", each.command], f"service-{each.port}.log")))

    def wait(self) -> None:
        """Return once each of them answers at its port.

        Raises:
            NodeFailed: one does not within the time for it.
        """
        for each, child in self._running:
            self._agent.state.update(detail=f"waiting for the service on port {each.port}")
            self._wait_for(each, child)
        self._agent.state.update(detail="")

    def look(self) -> None:
        """Raise when one of them has ended: every job that asks it would fail."""
        for each, child in self._running:
            status = child.poll()
            if status is not None:
                reason = f"`{each.command}`, the service on port {each.port}, ended with status {status}"
                advice = "; it has to stay in the foreground" if status == 0 else ""
                raise self._agent.fail("service", reason + advice, child.tail())

    def _wait_for(self, service: Service, child: Child) -> None:
        limit_s = self._agent.timeouts.service_s

        def late() -> NodeFailed:
            reason = f"`{service.command}` does not answer on port {service.port} after {limit_s:g} s"
            return self._agent.fail("service", reason, child.tail())

        self._agent.wait_for(lambda: service.answers, limit_s, late, 0.25)

    def _taken(self) -> NodeFailed:
        ports = ", ".join(str(each.port) for each in self._agent.options.services if each.answers)
        return self._agent.fail("service", f"ports of services are in use on this node: {ports}")
