"""The user's own servers, which run beside Ray on every node: a retrieval server, a sandbox, a judge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, List, Tuple

from cloudrl.node.ray import probe

if TYPE_CHECKING:
    from cloudrl.node.agent import Agent
    from cloudrl.node.failure import NodeFailed
    from cloudrl.node.process import Child
    from cloudrl.protocol.options import Service

_LOOPBACK = "127.0.0.1"
_PORTS_ARE_FREE_AFTER_S = 3.0
_ANSWERS_WITHIN_S = 1.0


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
            lambda: not any(map(_answers, services)), _PORTS_ARE_FREE_AFTER_S, self._taken, 0.5
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

        self._agent.wait_for(lambda: _answers(service), limit_s, late, 0.25)

    def _taken(self) -> NodeFailed:
        ports = ", ".join(str(each.port) for each in self._agent.options.services if _answers(each))
        return self._agent.fail("service", f"ports of services are in use on this node: {ports}")


def _answers(service: Service) -> bool:
    """Whether somebody takes connections at its port."""
    return probe(_LOOPBACK, service.port, _ANSWERS_WITHIN_S) == "open"
