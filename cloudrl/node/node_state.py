"""What is known on this node: its own report and, on rank 0, everybody's. The one place that threads share."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from cloudrl.node.failure import Failure, NodeFailed

if TYPE_CHECKING:
    from cloudrl.node.report import Report


class NodeState:
    """Thread-safe. Reports are frozen; each change replaces one."""

    def __init__(self, report: Report, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._own = report
        self._members: Dict[int, Report] = {}
        self._seen: Dict[int, float] = {}
        self._phase_since: Dict[int, float] = {}
        self._told: Dict[int, str] = {}
        self._published: Dict[str, Any] = {}
        self._failure: Optional[Failure] = None

    # -- this node ------------------------------------------------------------------------------------------

    @property
    def own(self) -> Report:
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

    def add_replicated(self, name: str, state: str) -> None:
        """Note how far something that a client has sent is on this node."""
        with self._lock:
            self._own = dataclasses.replace(self._own, replicated={**self._own.replicated, name: state})

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

    def replace_failure(self, failure: Failure) -> None:
        """Put the judged form in the place of the raw one."""
        with self._lock:
            self._failure = failure

    def raise_failure(self) -> None:
        """Leave the phases if anybody has failed."""
        failure = self.failure
        if failure is not None:
            raise NodeFailed(failure)

    # -- rank 0: all nodes ----------------------------------------------------------------------------------

    def record_heartbeat(self, report: Report) -> None:
        """A worker has sent its report."""
        with self._lock:
            before, now = self._members.get(report.rank), self._clock()
            if before is None or before.phase != report.phase:
                self._phase_since[report.rank] = now
            self._members[report.rank] = report
            self._seen[report.rank] = now
        if report.failure is not None:
            self.fail(report.failure)

    def reports(self) -> List[Report]:
        """All that are known, own included, by rank."""
        with self._lock:
            return [report for _, report in sorted({**self._members, self._own.rank: self._own}.items())]

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

    def publish(self, **facts: Any) -> None:
        """Add to what every heartbeat is answered with."""
        with self._lock:
            self._published = {**self._published, **facts}

    @property
    def published(self) -> Dict[str, Any]:
        """What the answers to heartbeats have, but for phase and failure."""
        with self._lock:
            return dict(self._published)

    def heartbeat_reply(self, rank: int) -> Dict[str, Any]:
        """The answer to a heartbeat of `rank`; remembers that the rank was told of a judged failure.

        What was published, this node's phase, and the failure once it is judged.
        """
        with self._lock:
            verdict = self._failure if self._published.get("judged") else None
            if verdict is not None:
                self._told[rank] = verdict.signature
            failure = verdict.to_json() if verdict else None
            return {**self._published, "phase": self._own.phase, "failure": failure}

    def uninformed_ranks(self) -> List[int]:
        """Ranks that were heard of and do not know of the failure yet."""
        with self._lock:
            return [rank for rank in self._members if rank not in self._told]
