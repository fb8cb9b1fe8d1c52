"""A job that outlives its machines, as the agents record it and as a client sees it.

A job has attempts: each is a submission of its own to Ray, and the next one goes on from what the one before has saved.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Optional, Tuple


class Verdict(str, enum.Enum):
    """What an attempt has ended of."""

    SUCCEEDED = "succeeded"
    STOPPED = "stopped"
    """Somebody stopped it."""
    INFRASTRUCTURE = "infrastructure"
    """A machine, Ray or the network; the program is not to blame."""
    PROGRAM = "program"
    """The user's job itself: it would fail again."""
    HANG = "hang"
    SHORT = "short"
    """Exit code 0 before the last step."""
    UNKNOWN = "unknown"
    """It has trained and then failed; the reason may be either."""

    def __str__(self) -> str:
        return self.value


class Result(str, enum.Enum):
    """How a job has ended for good."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Attempt:
    """One submission of a job to Ray.

    Attributes:
        number: from 1.
        submission_id: its id in Ray.
        cluster: the id of the start of the cluster on which it runs.
        from_step: the step that it goes on from, 0 for the beginning, and where it is not known.
        started_at: seconds since the epoch, as are all times here.
        ended_at: None while it may still run.
        verdict: of its end.
        reason: one line of its end for a person.
        signature: what two equal ends have in common; "" where nothing is known.
        saved_step: the last step that its trainer has told to be saved; 0 before, and where the trainer tells nothing.
        saved_at: when rank 0 has heard of it.
        step: the last step known to have ended, written down once a minute at most; 0 before the first.
        step_at: when rank 0 has seen that it had.
        first_step_at: the same of its first step.
        notice: which machines a cloud has said to take back about now; "" for none.
        notice_changes: how many times `notice` has changed.
    """

    number: int
    submission_id: str
    cluster: str
    from_step: int
    started_at: float
    ended_at: Optional[float] = None
    verdict: Optional[Verdict] = None
    reason: str = ""
    signature: str = ""
    saved_step: int = 0
    saved_at: Optional[float] = None
    step: int = 0
    step_at: Optional[float] = None
    first_step_at: Optional[float] = None
    notice: str = ""
    notice_changes: int = 0

    @property
    def is_open(self) -> bool:
        """Whether it may still run."""
        return self.ended_at is None


@dataclass(frozen=True)
class Score:
    """The value that a saved step has for `DurableJob.keep_best`.

    Attributes:
        step: the saved one.
        value: of the metric, finite.
        measured_at: the step at which verl has logged it.
    """

    step: int
    value: float
    measured_at: int


@dataclass(frozen=True)
class Keeping:
    """Steps that stay for good for one reason or two, as the fields of `DurableJob` with these names have it."""

    every: int = 0
    best: str = ""
    scores: Tuple[Score, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """The end of a job. It is never taken back."""

    result: Result
    reason: str
    at: float


@dataclass(frozen=True)
class DurableJob:
    """A job and its story.

    Attributes:
        job_id: the submission id of its first attempt.
        run: its name, whose checkpoints it continues.
        cluster_run: the id of the cluster's run, the same for all restarts of the cluster.
        request: the body of `POST /api/jobs/`, without secrets.
        submitted_at: when the agents took it.
        number: its place in the queue.
        world_size: how many ranks train.
        total_steps: None where the job does not say.
        saves: whether it saves checkpoints.
        chooses_step: whether its command says from which step it goes on, as verl's `auto` finds it; where all nodes
            save into one folder.
        training_nodes: how many nodes train; 0 where all do.
        is_placed: whether its command puts its ranks on nodes that it is given, and verl's controller on node 0.
        keep: of its whole steps so many stay, besides the newest that is safe; 0 for all.
        keep_every: steps that are multiples of it stay for good; 0 for none.
        keep_best: the metric whose best step stays for good, `min:METRIC` where less is better; "" for none.
        scores: what saved steps have of that metric, in their order.
        kept_before: what other jobs of the run keep for good.
        mirror: the address of the place that keeps copies of its steps after the machines; "" for none.
        mirror_rate: the most bytes a second that a node sends there; 0 for half of its time.
        package: the address of the files that Ray gets as its package; "" for none.
        waits_until: the next attempt starts no earlier.
        waits_for: why it waits, for a person; "" while it runs.
        attempts: the newest one last.
        outcome: None until it has ended for good.
    """

    job_id: str
    run: str
    cluster_run: str
    request: Dict[str, Any] = field(repr=False)
    submitted_at: float
    number: int = 0
    world_size: int = 1
    total_steps: Optional[int] = None
    saves: bool = True
    chooses_step: bool = False
    training_nodes: int = 0
    is_placed: bool = False
    package: str = ""
    keep: int = 0
    keep_every: int = 0
    keep_best: str = ""
    scores: Tuple[Score, ...] = ()
    kept_before: Tuple[Keeping, ...] = ()
    mirror: str = ""
    mirror_rate: int = 0
    waits_until: float = 0.0
    waits_for: str = ""
    attempts: Tuple[Attempt, ...] = ()
    outcome: Optional[Outcome] = None

    @property
    def keepings(self) -> Tuple[Keeping, ...]:
        """All that keeps steps of its run for good, as far as it knows."""
        return (Keeping(self.keep_every, self.keep_best, self.scores), *self.kept_before)

    @property
    def last(self) -> Optional[Attempt]:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def open_attempt(self) -> Optional[Attempt]:
        """The attempt that may run now."""
        return self.last if self.last is not None and self.last.is_open else None

    @property
    def submission_id(self) -> str:
        """Of the newest attempt; before the first that of the first."""
        return self.last.submission_id if self.last is not None else self.job_id

    @property
    def next_submission_id(self) -> str:
        """Of the next attempt: the job's own id for the first, `ID-2` for the second."""
        return self.job_id if not self.attempts else f"{self.job_id}-{len(self.attempts) + 1}"

    @property
    def is_waiting(self) -> bool:
        """Whether it has not ended for good, and no attempt of it runs."""
        return self.outcome is None and self.open_attempt is None

    @property
    def has_failed(self) -> bool:
        """Whether it has ended for good, and failed."""
        return self.outcome is not None and self.outcome.result is Result.FAILED

    def has(self, submission_id: str) -> bool:
        """Whether this id is the job's own or that of one of its attempts."""
        return submission_id == self.job_id or any(a.submission_id == submission_id for a in self.attempts)

    def may_come(self, submission_id: str) -> bool:
        """Whether Ray may not know an attempt of this id yet: it waits, or was recorded a moment ago."""
        if submission_id == self.next_submission_id:
            return self.outcome is None or not self.attempts
        return self.open_attempt is not None and self.open_attempt.submission_id == submission_id

    def with_last(self, **changes: Any) -> DurableJob:
        """The same with other fields in its newest attempt."""
        return replace(self, attempts=(*self.attempts[:-1], replace(self.attempts[-1], **changes)))

    @property
    def age(self) -> Tuple[bool, int, int, int, int, int, int]:
        """Compares two records of one job: the higher one is the newer."""
        ended = sum(not attempt.is_open for attempt in self.attempts)
        saved, done = (self.last.saved_step, self.last.step) if self.last is not None else (0, 0)
        scored = self.scores[-1].step if self.scores else 0
        noticed = self.last.notice_changes if self.last is not None else 0
        return self.outcome is not None, len(self.attempts), ended, saved, done, scored, noticed


def newest(*records: DurableJob) -> DurableJob:
    """Of several records of one job the one that counts: an end for good beats all others, then the later attempt."""
    return max(records, key=lambda record: record.age)
