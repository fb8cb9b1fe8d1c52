"""When a cluster ends by itself to save money: after a time without work, or when it has cost what it may.

Nobody need be connected for it: the agent of rank 0 counts, and ends all ranks alike, with exit status 0, so that
dstack does not start the run again.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, Optional, Sequence

from cloudrl.node.attempts import file_name

if TYPE_CHECKING:
    from pathlib import Path

    from cloudrl.protocol.options import BudgetLimits

DOWN = "down"
"""The kind of `Failure` with which a cluster ends on purpose."""
_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")  # ray/dashboard/modules/job/common.py: JobStatus.is_terminal
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"))


@dataclass(frozen=True)
class UsageSnapshot:
    """What is known at one time. Times are seconds of one clock that never goes back.

    Attributes:
        started_at: when this attempt's agent has started.
        ready_at: when the cluster was READY; None before.
        worked_at: when work was last seen, now for work that goes on; None when there was none.
        known: whether Ray has just said what work there is. Silence is no reason to end a job.
        cost_before: US dollars that earlier attempts have cost.
    """

    now: float
    started_at: float
    ready_at: Optional[float] = None
    worked_at: Optional[float] = None
    known: bool = False
    cost_before: float = 0.0

    @property
    def idle_s(self) -> Optional[float]:
        """Seconds without work, counted from READY or from the end of the last work; None before READY."""
        if self.ready_at is None:
            return None
        return self.now - max(self.ready_at, self.worked_at or self.ready_at)


def cost(limits: BudgetLimits, usage: UsageSnapshot) -> Optional[float]:
    """US dollars so far, from the start of the agents; None where nobody said the price."""
    if limits.price_per_hour is None:
        return None
    return usage.cost_before + limits.price_per_hour * (usage.now - usage.started_at) / 3600


def shutdown_reason(limits: BudgetLimits, usage: UsageSnapshot) -> str:
    """Why the cluster should end now, in a few words; "" when it should go on."""
    so_far = cost(limits, usage)
    if limits.max_cost is not None and so_far is not None and so_far >= limits.max_cost:
        return f"cost {dollars(so_far)} of {dollars(limits.max_cost)}"
    idle_s = usage.idle_s
    if limits.idle_s is not None and usage.known and idle_s is not None and idle_s >= limits.idle_s:
        return f"idle for {duration(limits.idle_s)}"
    return ""


def is_working(jobs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a job runs or waits, of those that Ray lists; drivers that were not submitted count, too."""
    return any(str(job.get("status")) not in _ENDED for job in jobs)


def are_working(actors: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of Ray's living actors is work: a submission may have ended and left its driver in the background.

    A detached one that holds no resources is none: libraries leave such behind (ray/data/_internal/stats.py), and the
    supervisors of submissions are such, too.
    """
    return any(not actor.get("is_detached") or _holds(actor.get("required_resources")) for actor in actors)


def _holds(resources: Any) -> bool:
    """Of the machine; `node:10.0.0.1` says only where."""
    return isinstance(resources, dict) and any(
        amount and not str(name).startswith("node:") for name, amount in resources.items()
    )


def dollars(amount: float) -> str:
    """Dollars as people write them: `$200`, `$200.10`."""
    return f"${amount:,.0f}" if amount == int(amount) else f"${amount:,.2f}"


def duration(seconds: float) -> str:
    """Seconds in the largest unit that fits: `30m`."""
    for size, unit in _UNITS:
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


class Transfers:
    """What clients send and fetch at the moment; a cluster is not idle meanwhile. Thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._going = 0
        self._ended_at: Optional[float] = None

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """For as long as one of them takes."""
        with self._lock:
            self._going += 1
        try:
            yield
        finally:
            with self._lock:
                self._going -= 1
                self._ended_at = self._clock()

    @property
    def seen_at(self) -> Optional[float]:
        """When there was one last: now, while one goes on; None for never."""
        with self._lock:
            return self._clock() if self._going else self._ended_at


class IdleMonitor:
    """Asks Ray now and then for its jobs and, when all have ended, for actors; in a thread, it may be slow to answer.

    Args:
        jobs: what Ray lists; None when it does not answer.
        actors: those that live; None when Ray does not answer.
        transfers: of this node.
        pause_s: between two questions.
    """

    def __init__(
        self,
        jobs: Callable[[], Optional[Sequence[Mapping[str, Any]]]],
        actors: Callable[[], Optional[Sequence[Mapping[str, Any]]]],
        transfers: Transfers,
        *,
        pause_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs, self._actors, self._transfers = jobs, actors, transfers
        self._pause_s, self._clock = pause_s, clock
        self._known, self._count = False, 0
        self._worked_at: Optional[float] = None

    def start(self) -> None:
        """Ask until the process ends."""
        threading.Thread(target=self._ask_for_ever, name="cloudrl-idle", daemon=True).start()

    def look(self) -> None:
        """Ask once."""
        jobs = self._jobs()
        if jobs is None:
            working = None
        elif is_working(jobs) or len(jobs) != self._count:
            working, self._count = True, len(jobs)  # also for one that came and went between two questions
        else:
            actors = self._actors()
            working = None if actors is None else are_working(actors)
        if working:
            self._worked_at = self._clock()
        self._known = working is not None

    def usage(self, started_at: float, ready_at: Optional[float], cost_before: float) -> UsageSnapshot:
        """What is known now."""
        seen = [each for each in (self._worked_at, self._transfers.seen_at) if each is not None]
        return UsageSnapshot(
            self._clock(), started_at, ready_at, max(seen, default=None), self._known, cost_before
        )

    def _ask_for_ever(self) -> None:
        while True:
            self.look()
            time.sleep(self._pause_s)


def pause_s(limits: BudgetLimits) -> float:
    """Seconds between two looks: a small part of the time without work that is allowed."""
    return min(15.0, max(0.2, (limits.idle_s or 0.0) / 20))


def read_cost(folder: Path, run_id: str) -> float:
    """US dollars that earlier attempts of a run have cost, as far as this node's volume remembers them."""
    try:
        return float(json.loads(_file(folder, run_id).read_text())["cost_before"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def write_cost(folder: Path, run_id: str, amount: float, *, rank: int) -> None:
    """Remember what the run has cost so far, for its next attempt. All ranks may share the folder.

    Raises:
        OSError: the volume cannot be written.
    """
    path = _file(folder, run_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{rank}.part")
    part.write_text(json.dumps({"cost_before": round(amount, 4), "at": time.time()}))
    part.replace(path)


def _file(folder: Path, run_id: str) -> Path:
    return folder / ".cloudrl" / "cost" / f"{file_name(run_id)}.json"
