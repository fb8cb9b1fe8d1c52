"""What is known on this node: its own report and, on rank 0, everybody's. The one place that threads share."""

import dataclasses
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Collection, Dict, List, Optional

from cloudrl.node.failure import NodeFailed
from cloudrl.protocol.failures import Failure
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.report import HeartbeatReply, NodeReport


@dataclass
class _Member:
    """Another rank, as rank 0 knows it: its newest report, and whether it was told of the judged failure."""

    report: NodeReport
    seen_at: float
    phase_since: float
    informed: bool = False
    belongs: bool = True
    """False for a node that another cluster is meant for: it gets the reason why all end, and counts nowhere."""


class NodeState:
    """Thread-safe. Reports are frozen; each change replaces one."""

    def __init__(
        self,
        report: NodeReport,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._lock = threading.Lock()
        self._clock, self._now = clock, now
        self._own, self._own_phase_since = report, clock()
        self._members: Dict[int, _Member] = {}
        self._published = HeartbeatReply()
        self._failure: Optional[Failure] = None
        self._judged: Optional[Failure] = None

    # -- this node ------------------------------------------------------------------------------------------

    @property
    def own(self) -> NodeReport:
        """This node's report."""
        return self._own

    def update(self, **changes: Any) -> None:
        """Change fields of this node's report."""
        with self._lock:
            if changes.get("phase", self._own.phase) != self._own.phase:
                self._own_phase_since = self._clock()
            self._own = dataclasses.replace(self._own, **changes)

    def add(self, field: str, key: str, value: Any) -> None:
        """Put one entry into a mapping of this node's report, such as `seconds`, `models` or `fetching`."""
        with self._lock:
            changes: Dict[str, Any] = {field: {**getattr(self._own, field), key: value}}
            self._own = dataclasses.replace(self._own, **changes)

    def keep(self, field: str, keys: Collection[str]) -> None:
        """Leave no other entries in a mapping of this node's report."""
        with self._lock:
            own = {key: value for key, value in getattr(self._own, field).items() if key in keys}
            changes: Dict[str, Any] = {field: own}
            self._own = dataclasses.replace(self._own, **changes)

    # -- failure --------------------------------------------------------------------------------------------

    @property
    def failure(self) -> Optional[Failure]:
        """The first failure, on whatever node."""
        return self._failure

    def fail(self, failure: Failure) -> Failure:
        """Note a failure and return the first one: it is the cause, later ones are its echo."""
        with self._lock:
            self._failure = self._failure or failure
            return self._failure

    def judge(self, failure: Failure) -> None:
        """Put the judged form in the place of the raw one; from now on all nodes get it."""
        with self._lock:
            self._failure = self._judged = failure

    def raise_failure(self) -> None:
        """Leave the phases if anybody has failed."""
        failure = self.failure
        if failure is not None:
            raise NodeFailed(failure)

    # -- rank 0: all nodes ----------------------------------------------------------------------------------

    def record_heartbeat(self, report: NodeReport, *, belongs: bool = True) -> None:
        """A worker has sent its report. The time of a notice in it is taken over by this node's clock."""
        with self._lock:
            now = self._clock()
            member = self._members.setdefault(report.rank, _Member(report, now, now))
            if report.interruption is not None and report.sent_at:
                ahead_s = self._now() - report.sent_at
                here = report.interruption.moved(ahead_s, member.report.interruption)
                report = dataclasses.replace(report, interruption=here)
            if member.report.phase != report.phase:
                member.phase_since = now
            member.report, member.seen_at, member.belongs = report, now, belongs
        if report.failure is not None:
            self.fail(report.failure)

    def refuse(self, report: NodeReport, failure: Failure) -> None:
        """A node that is not a rank of this cluster has sent its report: this start fails for all."""
        self.fail(failure)
        self.record_heartbeat(report, belongs=False)

    def reports(self) -> List[NodeReport]:
        """All that are known, own included, by rank.

        Once the barrier is open, every rank that has reported that it is done is ready. It says so itself only
        with its next heartbeat.
        """
        with self._lock:
            others = [member.report for member in self._members.values() if member.belongs]
            if self._published.ready:
                others = [_released(report) for report in others]
            return sorted([self._own, *others], key=lambda report: report.rank)

    def heartbeat_age_s(self, rank: int) -> float:
        """Seconds since the last heartbeat of a rank; 0 for this node."""
        with self._lock:
            return self._clock() - self._members[rank].seen_at if rank in self._members else 0.0

    def phase_s(self, rank: int) -> float:
        """Seconds that a rank is in its present phase, as far as it was heard of."""
        with self._lock:
            since = self._members[rank].phase_since if rank in self._members else self._own_phase_since
            return self._clock() - since

    # -- rank 0: what it tells all nodes --------------------------------------------------------------------

    def publish(self, **changes: Any) -> None:
        """Change what every heartbeat is answered with; on a worker, what the rest of its agent has to know of it."""
        with self._lock:
            self._published = dataclasses.replace(self._published, **changes)

    @property
    def published(self) -> HeartbeatReply:
        """What the answers to heartbeats have, but for phase and failure."""
        return self._published

    def heartbeat_reply(self, rank: int) -> HeartbeatReply:
        """The answer to a heartbeat of `rank`; remembers that the rank was told of a judged failure.

        What was published, as far as it is of interest to that rank, this node's phase, and the failure once it is
        judged.
        """
        with self._lock:
            if self._judged is not None and rank in self._members:
                self._members[rank].informed = True
            ip = self._members[rank].report.ip if rank in self._members else ""
            gpus_of_ray = tuple(address for address in self._published.gpus_of_ray if address == ip)
            return dataclasses.replace(
                self._published, phase=self._own.phase, failure=self._judged, gpus_of_ray=gpus_of_ray,
                interruption=self._own.interruption,
            )  # fmt: skip

    def uninformed_ranks(self) -> List[int]:
        """Ranks that were heard of and do not know of the failure yet."""
        with self._lock:
            return [rank for rank, member in self._members.items() if not member.informed]


def _released(report: NodeReport) -> NodeReport:
    """The report of a rank that may leave the barrier."""
    is_done = report.ray_up and report.fetched and not report.phase.is_terminal
    return dataclasses.replace(report, phase=Phase.READY, detail="") if is_done else report
