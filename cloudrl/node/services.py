"""The user's own servers, which run beside Ray on every node: a retrieval server, a sandbox, a judge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, List, Sequence, Tuple

from cloudrl.node.failure import NodeFailed
from cloudrl.node.ray import probe
from cloudrl.protocol.failures import Failure, FailureKind

if TYPE_CHECKING:
    from cloudrl.node.node_state import NodeState
    from cloudrl.node.process import Child
    from cloudrl.protocol.options import Service

_LOOPBACK = "127.0.0.1"
_PORTS_ARE_FREE_AFTER_S = 3.0
_ANSWERS_WITHIN_S = 1.0


class Services:
    """The services of one node, for its agent, which calls everything here from its main thread.

    Args:
        timeout_s: for one of them, until it answers.
        wait_for: polls a condition, within seconds, and raises what its third argument returns when that is over.
    """

    def __init__(
        self,
        services: Sequence[Service],
        state: NodeState,
        *,
        timeout_s: float,
        wait_for: Callable[..., None],
    ) -> None:
        self._services, self._state, self._timeout_s = services, state, timeout_s
        self._wait_for = wait_for
        self._running: List[Tuple[Service, Child]] = []

    def start(self, child: Callable[[List[str], str], Child]) -> None:
        """Start all of them; `child(command, log)` makes a process that is ended with the node.

        Raises:
            NodeFailed: somebody answers at one of the ports already, and would be taken for the service.
        """
        self._wait_for(
            lambda: not any(map(_answers, self._services)), _PORTS_ARE_FREE_AFTER_S, self._taken, 0.5
        )
        for each in self._services:
            self._running.append((each, child(["/bin/sh", "-c", each.command], f"service-{each.port}.log")))

    def wait(self) -> None:
        """Return once each of them answers at its port.

        Raises:
            NodeFailed: one does not within the time for it.
        """
        for each, child in self._running:
            self._state.update(detail=f"waiting for the service on port {each.port}")
            self._wait_until_it_answers(each, child)
        self._state.update(detail="")

    def check(self) -> None:
        """Raise when one of them has ended: every job that asks it would fail."""
        for each, child in self._running:
            status = child.poll()
            if status is not None:
                reason = f"`{each.command}`, the service on port {each.port}, ended with status {status}"
                advice = "; it has to stay in the foreground" if status == 0 else ""
                raise self._fail(reason + advice, child.tail(), subject=f"port {each.port}", code="exit")

    def _wait_until_it_answers(self, service: Service, child: Child) -> None:
        def late() -> NodeFailed:
            limit = f"after {self._timeout_s:g} s"
            return self._fail(
                f"`{service.command}` does not answer on port {service.port} {limit}", child.tail(),
                subject=f"port {service.port}", code="timeout",
            )  # fmt: skip

        self._wait_for(lambda: _answers(service), self._timeout_s, late, 0.25)

    def _taken(self) -> NodeFailed:
        ports = ", ".join(str(each.port) for each in self._services if _answers(each))
        said = f"ports of services are in use on this node: {ports}"
        return self._fail(said, subject=f"ports {ports}", code="taken")

    def _fail(self, reason: str, tail: str = "", *, subject: str, code: str) -> NodeFailed:
        rank = self._state.own.rank
        return NodeFailed(Failure(FailureKind.SERVICE, rank, reason, tail, subject=subject, code=code))


def _answers(service: Service) -> bool:
    """Whether somebody takes connections at its port."""
    return probe(_LOOPBACK, service.port, _ANSWERS_WITHIN_S) == "open"
