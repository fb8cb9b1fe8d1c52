"""The user's own servers, which run beside Ray on every node: a retrieval server, a sandbox, a judge."""

from typing import Callable, List, Sequence, Tuple

from cloudrl.node.failure import NodeFailed
from cloudrl.node.node_state import NodeState
from cloudrl.node.process import Child
from cloudrl.node.ray import probe
from cloudrl.protocol.failures import Failure, FailureKind
from cloudrl.protocol.options import Service

_PORTS_ARE_FREE_AFTER_S = 3.0


class Services:
    """The services of one node, for its agent, which calls everything here from its main thread.

    Args:
        wait_for: the agent's: whether a condition comes true within some seconds.
    """

    def __init__(self, services: Sequence[Service], state: NodeState, wait_for: Callable[..., bool]) -> None:
        self._services, self._state, self._wait_for = services, state, wait_for
        self._running: List[Tuple[Service, Child]] = []

    def start(self, child: Callable[[List[str], str], Child]) -> None:
        """Start all of them; `child(command, log)` makes a process that is ended with the node.

        Raises:
            NodeFailed: somebody answers at one of the ports already, and would be taken for the service.
        """
        if not self._wait_for(lambda: not any(map(_answers, self._services)), _PORTS_ARE_FREE_AFTER_S, 0.5):
            ports = ", ".join(str(each.port) for each in self._services if _answers(each))
            reason = f"ports of services are in use on this node: {ports}"
            raise self._failed(reason, subject=f"ports {ports}", code="taken")
        for each in self._services:
            self._running.append((each, child(["/bin/sh", "-c", each.command], f"service-{each.port}.log")))

    def wait(self, timeout_s: float) -> None:
        """Return once each of them answers at its port.

        Raises:
            NodeFailed: one does not within `timeout_s` seconds.
        """
        for service, child in self._running:
            port = f"port {service.port}"
            self._state.update(detail=f"waiting for the service on {port}")
            if not self._wait_for(lambda each=service: _answers(each), timeout_s, 0.25):
                reason = f"`{service.command}` does not answer on {port} after {timeout_s:g} s"
                raise self._failed(reason, child.tail(), subject=port, code="timeout")
        self._state.update(detail="")

    def check(self) -> None:
        """Raise when one of them has ended: every job that asks it would fail."""
        for each, child in self._running:
            status = child.poll()
            if status is not None:
                reason = f"`{each.command}`, the service on port {each.port}, ended with status {status}"
                advice = "; it has to stay in the foreground" if status == 0 else ""
                raise self._failed(reason + advice, child.tail(), subject=f"port {each.port}", code="exit")

    def _failed(self, reason: str, tail: str = "", *, subject: str, code: str) -> NodeFailed:
        rank = self._state.own.rank
        return NodeFailed(Failure(FailureKind.SERVICE, rank, reason, tail, subject=subject, code=code))


def _answers(service: Service) -> bool:
    """Whether somebody takes connections at its port."""
    return probe("127.0.0.1", service.port, 1.0) == "open"
