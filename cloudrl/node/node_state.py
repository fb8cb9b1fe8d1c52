"""What is known on this node: its own report and, on rank 0, everybody's. The one place that threads share."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Set

from cloudrl.node.failure import NodeFailed
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.report import HeartbeatReply

if TYPE_CHECKING:
    from cloudrl.protocol.failures import Failure
    from cloudrl.protocol.report import NodeReport, Replica


class NodeState:
    """Thread-safe. Reports are frozen; each change replaces one."""

    def __init__(self, report: NodeReport, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._own = report
        self._members: Dict[int, NodeReport] = {}
        self._seen: Dict[int, float] = {}
        self._phase_since: Dict[int, float] = {}
        self._told: Set[int] = set()
        self._published = HeartbeatReply()
        self._failure: Optional[Failure] = None
        self._judged: Optional[Failure] = None

    # -- this node ------------------------------------------------------------------------------------------

    @property
    def own(self) -> NodeReport:
        """This node's report."""
        with self._lock:
            return self._own

    def update(self, **changes: Any) -> None:
        """Change fields of this node's report."""
        with self._lock:
            self._own = dataclasses.replace(self._own, **changes)

    def add_seconds(self, step: str, seconds: float) -> None:
        """Note how long a step took."""
        with self._lock:
            self._own = dataclasses.replace(self._own, seconds={**self._own.seconds, step: round(seconds, 3)})

    def add_model(self, name: str, path: str) -> None:
        """Note where a model lies on this node."""
        with self._lock:
            self._own = dataclasses.replace(self._own, models={**self._own.models, name: path})

    def add_replica(self, name: str, replica: Replica) -> None:
        """Note how far something that a client has sent is on this node."""
        with self._lock:
            self._own = dataclasses.replace(self._own, replicas={**self._own.replicas, name: replica})

    # -- failure --------------------------------------------------------------------------------------------

    @property
    def failure(self) -> Optional[Failure]:
        """The first failure, on whatever node."""
        with self._lock:
            return self._failure

    def fail(self, failure: Failure) -> Failure:
        """Note a failure and return the first one: it is the cause, later ones are its echo."""
        with self._lock:
            self._failure = self._failure or failure
            return self._failure

    def judge(self, failure: Failure) -> None:
        """Put the judged form in the place of the raw one; from now on all nodes are told."""
        with self._lock:
            self._failure = self._judged = failure

    def raise_failure(self) -> None:
        """Leave the phases if anybody has failed."""
        failure = self.failure
        if failure is not None:
            raise NodeFailed(failure)

    # -- rank 0: all nodes ----------------------------------------------------------------------------------

    def record_heartbeat(self, report: NodeReport) -> None:
        """A worker has sent its report."""
        with self._lock:
            before, now = self._members.get(report.rank), self._clock()
            if before is None or before.phase != report.phase:
                self._phase_since[report.rank] = now
            self._members[report.rank] = report
            self._seen[report.rank] = now
        if report.failure is not None:
            self.fail(report.failure)

    def reports(self) -> List[NodeReport]:
        """All that are known, own included, by rank.

        Once the barrier is open, every rank that has reported that it is done is ready. It says so itself only
        with its next heartbeat.
        """
        with self._lock:
            reports = [self._own, *self._members.values()]
            if self._published.ready:
                reports[1:] = map(_released, reports[1:])
            return sorted(reports, key=lambda report: report.rank)

    def heartbeat_age_s(self, rank: int) -> float:
        """Seconds since the last heartbeat of a rank; 0 for this node, infinite for one never heard of."""
        with self._lock:
            if rank == self._own.rank:
                return 0.0
            return self._clock() - self._seen[rank] if rank in self._seen else float("inf")

    def phase_s(self, rank: int) -> float:
        """Seconds since a rank was heard first in its present phase; 0 for this node and one never heard of."""
        with self._lock:
            return self._clock() - self._phase_since[rank] if rank in self._phase_since else 0.0

    # -- rank 0: what all nodes are told --------------------------------------------------------------------

    def publish(self, **changes: Any) -> None:
        """Change what every heartbeat is answered with."""
        with self._lock:
            self._published = dataclasses.replace(self._published, **changes)

    @property
    def published(self) -> HeartbeatReply:
        """What the answers to heartbeats have, but for phase and failure."""
        with self._lock:
            return self._published

    def heartbeat_reply(self, rank: int) -> HeartbeatReply:
        """The answer to a heartbeat of `rank`; remembers that the rank was told of a judged failure.

        What was published, this node's phase, and the failure once it is judged.
        """
        with self._lock:
            if self._judged is not None:
                self._told.add(rank)
            return dataclasses.replace(self._published, phase=self._own.phase, failure=self._judged)

    def uninformed_ranks(self) -> List[int]:
        """Ranks that were heard of and do not know of the failure yet."""
        with self._lock:
            return [rank for rank in self._members if rank not in self._told]


def _released(report: NodeReport) -> NodeReport:
    """The report of a rank that may leave the barrier."""
    is_done = report.ray_up and report.fetched and not report.phase.is_terminal
    return dataclasses.replace(report, phase=Phase.READY, detail="") if is_done else report
