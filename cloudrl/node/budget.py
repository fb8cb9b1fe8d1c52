"""When a cluster ends by itself to save money: after a time without work, or when it has cost what it may.

No client has to be connected for it: the agent of rank 0 counts, and ends all ranks alike, with exit status 0, so that
dstack does not start the run again.
"""

import contextlib
import threading
import time
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from cloudrl.node.ray import Dashboard
from cloudrl.protocol.options import BudgetLimits
from cloudrl.protocol.ray_state import ENDED
from cloudrl.units import dollars_text, duration_option

SPARED_SHARE = 0.1
"""Of `max_cost`: so much more may be spent to end a save, a merge, a copy or an upload that is under way."""
_RESULTS = ("merge", "push")
"""Jobs of cloudrl's own that bring a model out of the cluster: `cloudrl_recipe` in their metadata."""
_PAUSED_S = 15.0
"""Between two requests of one transfer."""


def shutdown_reason(
    limits: BudgetLimits, cost: Optional[float], idle_s: Optional[float], *, is_saving: bool = False
) -> str:
    """Why the cluster should end now, in a few words; "" when it should go on.

    Args:
        limits: what the user has set.
        cost: US dollars so far; None if the price is unknown.
        idle_s: seconds without work; None if unknown.
        is_saving: whether something is under way without which the money was spent for nothing.
    """
    most = (limits.max_cost or 0.0) * (1 + SPARED_SHARE * is_saving)
    if limits.max_cost is not None and cost is not None and cost >= most:
        return f"cost {dollars_text(cost)} of {dollars_text(limits.max_cost)}"
    if limits.idle_s is not None and idle_s is not None and idle_s >= limits.idle_s:
        return f"idle for {duration_option(limits.idle_s)}"
    return ""


def is_working(jobs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a job runs or waits, of those that Ray lists; drivers that were not submitted count, too."""
    return any(str(job.get("status")) not in ENDED for job in jobs)


def are_working(actors: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of Ray's living actors is work: a submission may have ended and left its driver in the background.

    A detached one without resources does not count: libraries leave such behind (ray/data/_internal/stats.py), and the
    supervisors of submissions are such, too.
    """
    return any(not actor.get("is_detached") or _holds(actor.get("required_resources")) for actor in actors)


def _brings_result(job: Mapping[str, Any]) -> bool:
    metadata = job.get("metadata")
    is_ours = isinstance(metadata, Mapping) and metadata.get("cloudrl_recipe") in _RESULTS
    return is_ours and is_working([job])


def _holds(resources: Any) -> bool:
    """Of the machine; `node:10.0.0.1` says only where."""
    return isinstance(resources, dict) and any(
        amount and not str(name).startswith("node:") for name, amount in resources.items()
    )


class IdleMonitor:
    """Asks Ray now and then for its jobs and, when all have ended, for actors; in a thread, it may be slow to answer.

    Args:
        ray: the dashboard of this cluster.

    Attributes:
        known: whether Ray has just said what work there is. Silence is no reason to end a job.
        brings_result: whether a job merges or publishes a checkpoint, as of the last answer.
    """

    def __init__(self, ray: Dashboard, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ray, self._clock, self._lock = ray, clock, threading.Lock()
        self.known, self._count, self._transfers = False, 0, 0
        self.brings_result, self._transferred_at = False, float("-inf")
        self._ready_at: Optional[float] = None
        self._worked_at = float("-inf")

    def start(self, limit_s: Optional[float]) -> None:
        """The cluster is READY. With a limit on the time without work, ask until the process ends."""
        self._ready_at = self._clock()
        if limit_s is not None:
            threading.Thread(target=self._ask_for_ever, args=(pause_s(limit_s),), daemon=True).start()

    def poll(self) -> None:
        """Ask once."""
        jobs = self._ray.jobs()
        if jobs is not None:
            self.brings_result = any(map(_brings_result, jobs))
        if jobs is None:
            working = None
        elif is_working(jobs) or len(jobs) != self._count:
            working, self._count = True, len(jobs)  # also for one that came and went between two questions
        else:
            actors = self._ray.alive_actors()
            working = None if actors is None else are_working(actors)
        if working:
            self._worked_at = self._clock()
        self.known = working is not None

    @contextlib.contextmanager
    def transfer(self) -> Iterator[None]:
        """For as long as a client sends or fetches something, the cluster is not idle. For any thread."""
        with self._lock:
            self._transfers += 1
        try:
            yield
        finally:
            with self._lock:
                self._transfers -= 1
                self._worked_at = self._transferred_at = self._clock()

    @property
    def is_transferring(self) -> bool:
        """Whether a client sends or fetches something, or has just done so."""
        return self._transfers > 0 or self._clock() - self._transferred_at < _PAUSED_S

    @property
    def idle_s(self) -> Optional[float]:
        """Seconds without work, counted from READY or from the end of the last work; None before READY."""
        if self._ready_at is None or self._transfers:
            return None if self._ready_at is None else 0.0
        return self._clock() - max(self._ready_at, self._worked_at)

    def _ask_for_ever(self, pause_s: float) -> None:
        while True:
            self.poll()
            time.sleep(pause_s)


def pause_s(limit_s: float) -> float:
    """Seconds between two questions: a small part of the time without work that is allowed."""
    return min(15.0, max(0.2, limit_s / 20))
