"""The user's own servers, which run beside Ray on every node: a retrieval server, a sandbox, a judge."""

import sys
import time
from pathlib import Path
from typing import Callable, Dict, List, Mapping, Optional, Sequence

from cloudrl.child_process import Child
from cloudrl.node.failure import NodeFailed
from cloudrl.node.fetch import artifacts_dir
from cloudrl.node.health import HealthCheck
from cloudrl.node.node_state import NodeState
from cloudrl.node.ray import probe
from cloudrl.node.tokens import PEER_TOKEN
from cloudrl.protocol.failures import Failure, FailureKind
from cloudrl.protocol.options import AgentOptions
from cloudrl.protocol.services import Service

SILENT_S = 120.0
"""A service that was ready and does not answer its health path for so long counts as ended."""
_ASKED_SO_OFTEN = 24  # in that time
WELL_S = 600.0
"""A service that was ready for so long has all its restarts again."""
_LONGEST_WORDS = 300
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 60.0
_RELOAD_S = 900.0  # 65 GB at 200 MB/s take 325 s; the first time they may have been in memory, just fetched
_PORTS_ARE_FREE_AFTER_S = 3.0
_GRACE_S = 3.0

StartChild = Callable[[List[str], str], Child]


class Services:
    """The services of one node, for its agent, which calls everything here from its main thread.

    Args:
        wait_for: the agent's: whether a condition comes true within some seconds, with `check` meanwhile.
        say: gets what is started again, and why.
    """

    def __init__(
        self,
        services: Sequence[Service],
        state: NodeState,
        wait_for: Callable[..., bool],
        say: Callable[[str], object],
        *,
        clock: Callable[[], float] = time.monotonic,
        silent_s: float = SILENT_S,
        well_s: float = WELL_S,
    ) -> None:
        self._state, self._wait_for, self._say, self._clock = state, wait_for, say, clock
        self._silent_s, self._well_s = silent_s, well_s
        self._all = [_Supervised(service) for service in services]
        for service in services:
            if service.peer_port:
                state.add("peers", service.label, f"{state.own.ip}:{service.peer_port}")
        self._child: Optional[StartChild] = None

    def start(self, child: StartChild) -> None:
        """Start those that need nothing; `check` starts the others when what they need is there.

        Args:
            child: `child(command, log)` makes a process that is ended with the node.

        Raises:
            NodeFailed: somebody answers at one of the ports already, and would be taken for the service.
        """
        if not self._wait_for(lambda: not _taken(self._all), _PORTS_ARE_FREE_AFTER_S, 0.5):
            raise self._in_use(_taken(self._all))
        self._child = child
        self.check()

    def wait(self, timeout_s: float) -> None:
        """Return once all of them are ready; one may end while another still loads.

        Raises:
            NodeFailed: one is not within `timeout_s` seconds.
        """
        while (supervised := self._first_down()) is not None:
            service = supervised.service
            self._state.update(detail=f"waiting for the service on port {service.port}")
            if not self._wait_for(lambda supervised=supervised: supervised.is_ready, timeout_s, 0.25):
                reason = f"`{service.command}` does not answer on {_place(service)} after {timeout_s:g} s"
                raise self._failed(
                    reason + supervised.said, supervised.tail(), subject=f"port {service.port}", code="timeout"
                )
        self._state.update(detail="")

    def check(self) -> None:
        """Start what has to be started, and see to what has ended, or does not answer any more.

        Raises:
            NodeFailed: one of them has ended and is not to be started again: every job that asks it would fail.
        """
        if self._child is not None:
            for service in self._all:
                self._check(service, self._child)

    def _check(self, supervised: "_Supervised", child: StartChild) -> None:
        if supervised.child is None:
            if self._clock() >= supervised.due_at and self._has_what_it_needs(supervised.service):
                self._start(supervised, child)
            return
        status = supervised.child.poll()
        if status is not None:
            advice = "; it has to stay in the foreground" if status == 0 else ""
            self._on_end(supervised, f"ended with status {status}{advice}", "exit")
        elif supervised.silence_s(self._clock()) > supervised.may_be_silent_s(self._silent_s):
            reason = f"has not answered on {_place(supervised.service)} for {supervised.silence_s(self._clock()):.0f} s"
            self._on_end(supervised, reason + supervised.said, "timeout")
        elif supervised.is_ready:
            supervised.note_ready()
            self._report(supervised, "ready")
            if supervised.ready_s(self._clock()) > self._well_s:
                supervised.restarts = 0

    def _start(self, supervised: "_Supervised", child: StartChild) -> None:
        """Start it, unless somebody else answers at its port by now, and would be taken for it."""
        if not (ports := _taken([supervised])):
            supervised.start(child, self._variables(supervised.service), self._clock, self._silent_s / _ASKED_SO_OFTEN)
            self._report(supervised, "starting")
        elif supervised.was_ready:
            self._on_end(supervised, "cannot be started again: another process answers there", "taken")
        else:
            raise self._in_use(ports)

    def _first_down(self) -> "Optional[_Supervised]":
        self.check()
        return next((service for service in self._all if not service.is_ready), None)

    def _on_end(self, supervised: "_Supervised", what: str, code: str) -> None:
        """Have it started again after a pause, or fail."""
        service, tail = supervised.service, supervised.tail()
        supervised.end()
        reason = f"`{service.command}`, the service on port {service.port}, {what}"
        if not supervised.was_ready or supervised.restarts >= service.restart:
            if supervised.restarts:
                reason += f"; it was started again {supervised.restarts} times"
            reason += _last_words(tail) if not supervised.was_ready else ""
            raise self._failed(reason, tail, subject=f"port {service.port}", code=code)
        pause_s = min(_FIRST_PAUSE_S * 2**supervised.restarts, _LONGEST_PAUSE_S)
        supervised.restarts += 1
        supervised.due_at = self._clock() + pause_s
        last_words = f"; it said:\n{tail}" if tail else ""
        self._say(f"{reason}; started again in {pause_s:g} s ({supervised.restarts} of {service.restart}){last_words}")
        self._report(supervised, f"started again, {supervised.restarts} of {service.restart}")

    def _has_what_it_needs(self, service: Service) -> bool:
        own = self._state.own
        has_files = all(name in own.artifacts or name in own.models for name in service.needs)
        return has_files and (not service.peer_port or self._state.published.peers is not None)

    def _variables(self, service: Service) -> Dict[str, str]:
        """What its command finds in its environment."""
        variables = {"PORT": str(service.port)}
        if service.peer_port:
            addresses = (self._state.published.peers or {})[service.label]
            variables.update(PEERS=",".join(addresses), RANK=str(self._state.own.rank))
        return variables

    def _report(self, supervised: "_Supervised", word: str) -> None:
        if self._state.own.services.get(supervised.service.label) != word:
            self._state.add("services", supervised.service.label, word)

    def _in_use(self, taken: List[int]) -> NodeFailed:
        ports = ", ".join(map(str, taken))
        reason = f"ports of services are in use on this node: {ports} -> another `port`, where jobs share a node"
        return self._failed(reason, subject=f"ports {ports}", code="taken")

    def _failed(self, reason: str, tail: str = "", *, subject: str, code: str) -> NodeFailed:
        rank = self._state.own.rank
        return NodeFailed(Failure(FailureKind.SERVICE, rank, reason, tail, subject=subject, code=code))


def _last_words(tail: str) -> str:
    """As the end of a reason: where no more of a log is shown, the last line of it says most."""
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    return f"; it said last: {lines[-1][:_LONGEST_WORDS]}" if lines else ""


class _Supervised:
    """One service: its process, whether that answers, and how often it was started again.

    Attributes:
        child: None while it is not started yet, or waits to be started again.
        restarts: since it was well for the last time.
        due_at: not to be started before.
        was_ready: in this start or an earlier one. A service that never was has a mistake that no restart cures.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.child: Optional[Child] = None
        self.restarts, self.due_at, self.was_ready = 0, 0.0, False
        self._health: Optional[HealthCheck] = None
        self._started_at = self._loading_s = 0.0

    def start(
        self, child: StartChild, variables: Mapping[str, str], clock: Callable[[], float], pause_s: float
    ) -> None:
        words = ["/usr/bin/env", *map("=".join, variables.items()), "/bin/sh", "-c", self.service.command]
        self.child = child(words, f"service-{self.service.port}.log")
        self._started_at = clock()
        self._health = HealthCheck(self.service, clock=clock, pause_s=pause_s)

    def end(self) -> None:
        """End what is left of it: who it has started may hold its port."""
        if self._health is not None:
            self._health.close()
        if self.child is not None:
            self.child.end(_GRACE_S)
        self.child = self._health = None

    def tail(self) -> str:
        return "" if self.child is None else self.child.tail()

    @property
    def is_ready(self) -> bool:
        return self._health is not None and self._health.ready_at is not None

    @property
    def said(self) -> str:
        """What it answers instead, in brackets."""
        return (
            f" ({self._health.said})" if self.service.health and self._health is not None and self._health.said else ""
        )

    def note_ready(self) -> None:
        """Remember how long it took to load at first."""
        if not self.was_ready and self._health is not None and self._health.ready_at is not None:
            self._loading_s = self._health.ready_at - self._started_at
            self.was_ready = True

    def ready_s(self, now: float) -> float:
        """How long it has been ready in this start."""
        return now - self._health.ready_at if self._health is not None and self._health.ready_at is not None else 0.0

    def silence_s(self, now: float) -> float:
        """Since its last answer, or its start. An open port is asked for once."""
        if self._health is None or (self.is_ready and not self.service.health):
            return 0.0
        return now - (self._health.answered_at or self._started_at)

    def may_be_silent_s(self, limit_s: float) -> float:
        """More while it loads: at first without end, since `wait` has a limit, then three times as long as at first.

        One that has to do with its like on other nodes is not ready while one of them loads.
        """
        if self.is_ready and not self.service.peer_port:
            return limit_s
        at_least = max(limit_s, _RELOAD_S) if self.service.needs or self.service.peer_port else limit_s
        return max(at_least, 3 * self._loading_s) if self.was_ready else float("inf")


def service_variables(options: AgentOptions) -> Dict[str, str]:
    """What tells the processes of a node where its services answer, and services where their files are."""
    return {
        **{service.variable: f"127.0.0.1:{service.port}" for service in options.services},
        "CLOUDRL_ARTIFACTS": str(artifacts_dir(options.data_dir)),
        "CLOUDRL_FILES": str(Path(sys.argv[0]).absolute().parent),
        "CLOUDRL_PEER_TOKEN_FILE": str(options.run_dir / PEER_TOKEN),
    }


def _taken(services: Sequence[_Supervised]) -> List[int]:
    """Those of their ports at which somebody takes connections."""
    ports = [service.service.port for service in services]
    return [port for port in ports if probe("127.0.0.1", port, 1.0) == "open"]


def _place(service: Service) -> str:
    return f"port {service.port}" + (f" to GET {service.health} with status 200" if service.health else "")
