"""Which job runs next, and what follows the end of an attempt: a state machine without clock, disk or network.

One attempt of one job runs at a time. `step` gives the next state and what is to be done, in this order; whoever does
it does the first before the second. So a record is on disk before Ray is asked for anything (`Record` comes first).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Dict, Iterable, List, Mapping, Optional, Tuple, Union

from cloudrl.durable.giving_up import FIRST_PAUSE_S, LONGEST_PAUSE_S, gives_up, next_pause_s, step_text
from cloudrl.durable.notices import Noticed, explained, held, noted
from cloudrl.durable.progress import Saved, Scored, Stepped, progressed
from cloudrl.durable.verdicts import Judgement, RayEnd, judge
from cloudrl.protocol.durable_jobs import Attempt, DurableJob, Outcome, Result, Verdict, newest
from cloudrl.protocol.interruptions import Interruption, countdown_text
from cloudrl.saves.keeping import forget_after, unite

# -- events -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Accepted:
    """A client has left a job; it is recorded already, so that the client may be told."""

    job: DurableJob


@dataclass(frozen=True)
class StopAsked:
    """Somebody wants this job to end."""

    job_id: str


@dataclass(frozen=True)
class Tick:
    """Time has passed; `is_ray_free` tells whether no other job runs that Ray knows."""

    is_ray_free: bool


@dataclass(frozen=True)
class Planned:
    """From which step an attempt can go on, and the overrides and variables that have verl do it.

    `from_step` is 0 for the beginning, None where verl itself finds a step that is not known here.
    """

    job_id: str
    from_step: Optional[int]
    overrides: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PlanFailed:
    """No step can be loaded; `may_pass` where a node was silent or copies a step: it is asked again after a pause."""

    job_id: str
    reason: str
    may_pass: bool = False
    pause_s: float = FIRST_PAUSE_S


@dataclass(frozen=True)
class Refused:
    """Ray does not take an attempt."""

    submission_id: str
    reason: str


@dataclass(frozen=True)
class Ended:
    """An attempt has ended, as Ray says."""

    submission_id: str
    end: RayEnd


@dataclass(frozen=True)
class Gone:
    """Ray answers, and does not know an attempt that it had."""

    submission_id: str
    reason: str = "Ray no longer knows it"


@dataclass(frozen=True)
class Hung:
    """An attempt stands still and does not go on by itself; `is_final` where another attempt would stand there, too."""

    submission_id: str
    reason: str
    is_final: bool = False


@dataclass(frozen=True)
class Remembered:
    """Records of jobs that are not this cluster's to go on with; what they keep of their runs stays."""

    records: Tuple[DurableJob, ...]


Event = Union[
    Accepted, Remembered, StopAsked, Tick, Planned, PlanFailed, Refused, Ended, Gone, Hung, Saved, Stepped, Scored,
    Noticed,
]  # fmt: skip


# -- actions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """Write the job to the volumes: this record, or a newer one if there is one by then."""

    job: DurableJob


@dataclass(frozen=True)
class Plan:
    """Find out from which step the job can go on; answered with `Planned` or `PlanFailed`."""

    job: DurableJob


@dataclass(frozen=True)
class Submit:
    """Hand an attempt to Ray, with these overrides and variables in place of the request's own."""

    job: DurableJob
    overrides: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stop:
    """Have Ray stop an attempt; answered with `Ended` once it has."""

    submission_id: str


@dataclass(frozen=True)
class Say:
    """Print a line."""

    text: str


Action = Union[Record, Plan, Submit, Stop, Say]


# -- the state ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Queue:
    """All jobs of a cluster.

    Attributes:
        cluster: the id of this start of the cluster.
        jobs: by their ids.
        planning: the job for which a plan was asked for, until the answer.
        hung: attempts that are stopped because they stand still.
        notices: rank -> the notice of a cloud that it takes the machine back.
        earlier: jobs of other clusters, by their ids.
    """

    cluster: str
    jobs: Mapping[str, DurableJob] = field(default_factory=dict)
    planning: str = ""
    hung: Mapping[str, Hung] = field(default_factory=dict)
    notices: Mapping[int, Interruption] = field(default_factory=dict)
    earlier: Mapping[str, DurableJob] = field(default_factory=dict)

    @property
    def in_order(self) -> List[DurableJob]:
        """All jobs in their order, each with what its run keeps for good."""
        return [self.united(job) for job in sorted(self.jobs.values(), key=lambda job: (job.number, job.job_id))]

    def united(self, job: DurableJob) -> DurableJob:
        """A job with what its run keeps for good."""
        return unite(job, [*self.earlier.values(), *self.jobs.values()])

    @property
    def waiting(self) -> List[DurableJob]:
        """Jobs without an end and without a running attempt, in their order."""
        jobs = [job for job in self.jobs.values() if job.is_waiting]
        return sorted(jobs, key=lambda job: (job.number, job.job_id))

    @property
    def running(self) -> Optional[DurableJob]:
        """The job of which an attempt may run, also one that is being stopped."""
        return next((job for job in self.jobs.values() if job.open_attempt is not None), None)

    @property
    def has_work(self) -> bool:
        """Whether any job has not ended for good."""
        return any(job.outcome is None for job in self.jobs.values()) or self.running is not None

    def of(self, submission_id: str) -> Optional[DurableJob]:
        """The job with an attempt of this id, or with this id."""
        return next((job for job in self.jobs.values() if job.has(submission_id)), None)

    def with_job(self, job: DurableJob) -> Queue:
        """The same with this record of a job."""
        return replace(self, jobs={**self.jobs, job.job_id: job})


Step = Tuple[Queue, List[Action]]


def restore(records: Iterable[DurableJob], *, cluster: str, cluster_run: str, now: float) -> Step:
    """The queue of a cluster that has just become ready, from what its volumes remember.

    An attempt of an earlier start of the cluster has ended with it. Jobs of other clusters, whose volume this was, do
    not go on by themselves.

    Args:
        records: of all nodes; several of one job are merged.
        cluster: the id of this start.
        cluster_run: the id of the cluster's run.
        now: seconds since the epoch.
    """
    jobs: Dict[str, DurableJob] = {}
    for record in (known := list(records)):
        if record.cluster_run == cluster_run:
            jobs[record.job_id] = newest(record, jobs.get(record.job_id, record))
    queue, actions = _remember(Queue(cluster, jobs), known), []  # type: Queue, List[Action]
    for job in jobs.values():
        attempt = job.open_attempt
        if attempt is not None and attempt.cluster != cluster:
            lost = explained(Judgement(Verdict.INFRASTRUCTURE, "the cluster was lost"), attempt.notice)
            queue, more = _close(queue, job, lost, now, pause_s=0.0)
            actions += more
    return queue, actions


def step(queue: Queue, event: Event, now: float) -> Step:
    """What an event changes, and what is to be done.

    Args:
        queue: the state before.
        event: what has happened.
        now: seconds since the epoch.
    """
    if isinstance(event, Tick):
        return _tick(queue, event, now)
    if isinstance(event, Accepted):
        return queue if event.job.job_id in queue.jobs else queue.with_job(event.job), []
    if isinstance(event, Remembered):
        return _remember(queue, event.records), []
    if isinstance(event, (Planned, PlanFailed)):
        return _planned(queue, event, now)
    if isinstance(event, (StopAsked, Noticed)):
        return _stop(queue, event.job_id, now) if isinstance(event, StopAsked) else _noticed(queue, event, now)
    return _of_attempt(queue, event, now)


def _remember(queue: Queue, records: Iterable[DurableJob]) -> Queue:
    earlier = dict(queue.earlier)
    for record in records:
        if record.job_id not in queue.jobs:
            earlier[record.job_id] = newest(record, earlier.get(record.job_id, record))
    return replace(queue, earlier=earlier)


def _of_attempt(queue: Queue, event: Union[Refused, Ended, Gone, Hung, Saved, Stepped, Scored], now: float) -> Step:
    job_of_attempt = queue.of(event.submission_id)
    attempt = job_of_attempt.open_attempt if job_of_attempt is not None else None
    if isinstance(event, (Saved, Stepped, Scored)):
        job = progressed(job_of_attempt, event, now) if job_of_attempt is not None else None
        return (queue, []) if job is None else (queue.with_job(job), [Record(job)])
    if job_of_attempt is None or attempt is None or attempt.submission_id != event.submission_id:
        return queue, []  # told a second time, or of an attempt that has ended
    return _attempt_event(queue, job_of_attempt, event, now)


def next_number(queue: Queue) -> int:
    """The place of a job that comes now: behind all others."""
    return max((job.number for job in queue.jobs.values()), default=0) + 1


def _attempt_event(queue: Queue, job: DurableJob, event: Union[Refused, Ended, Gone, Hung], now: float) -> Step:
    if isinstance(event, Hung):
        if event.submission_id in queue.hung:
            return queue, []
        said = Say(f"job {job.job_id}: attempt {len(job.attempts)} is stopped: {event.reason}")
        return replace(queue, hung={**queue.hung, event.submission_id: event}), [said, Stop(event.submission_id)]
    if isinstance(event, Refused):
        return _close(queue, job, Judgement(Verdict.PROGRAM, f"Ray refuses it: {event.reason}"), now)
    hang = queue.hung.get(event.submission_id)
    if hang is not None:
        verdict = Verdict.PROGRAM if hang.is_final else Verdict.HANG
        return _close(queue, job, Judgement(verdict, hang.reason), now)
    found = Judgement(Verdict.INFRASTRUCTURE, event.reason) if isinstance(event, Gone) else judge(event.end, job)
    return _close(queue, job, explained(found, job.attempts[-1].notice), now)


def _tick(queue: Queue, event: Tick, now: float) -> Step:
    running = queue.running
    if running is not None:
        attempt = running.open_attempt
        assert attempt is not None  # noqa: S101  what `running` says
        is_to_end = running.outcome is not None or attempt.submission_id in queue.hung
        queue, actions = _note(queue, now)
        return queue, [*actions, *([Stop(attempt.submission_id)] if is_to_end else [])]
    if queue.planning or not event.is_ray_free or not queue.waiting:
        return queue, []
    job = queue.waiting[0]
    # a clock that was set back must not keep a job waiting for hours
    if now < job.waits_until <= now + LONGEST_PAUSE_S:
        return queue, []
    if (waiting := held(job, queue.notices, now)) is not None:
        return (queue, []) if waiting == job else (queue.with_job(waiting), [Record(waiting)])
    return replace(queue, planning=job.job_id), [Plan(job)]


def _noticed(queue: Queue, event: Noticed, now: float) -> Step:
    new = [item for item in sorted(event.notices.items()) if item not in queue.notices.items()]
    queue, actions = _note(replace(queue, notices=event.notices), now)
    return queue, [*actions, *(Say(countdown_text(rank, notice, now)) for rank, notice in new)]


def _note(queue: Queue, now: float) -> Step:
    """Record the notices that concern the attempt that runs, so that a restart knows why it was lost."""
    job = noted(queue.running, queue.notices, now)
    return (queue, []) if job is None else (queue.with_job(job), [Record(job)])


def _planned(queue: Queue, event: Union[Planned, PlanFailed], now: float) -> Step:
    job = queue.jobs.get(event.job_id)
    queue = replace(queue, planning="")
    if job is None or job.outcome is not None or queue.running is not None or held(job, queue.notices, now):
        return queue, []
    if isinstance(event, PlanFailed):
        if not event.may_pass:
            return _finish(queue, job, Result.FAILED, event.reason, now)
        waiting = replace(job, waits_until=now + event.pause_s, waits_for=event.reason)
        return queue.with_job(waiting), [Record(waiting)]
    from_step = event.from_step or 0
    # it was lost between its last save and its end
    if job.attempts and job.total_steps and from_step >= job.total_steps:
        return _finish(queue, job, Result.SUCCEEDED, f"all {job.total_steps} steps are done", now)
    given_up = gives_up(job, from_step)
    if given_up is not None:
        return _finish(queue, job, *given_up, now)
    attempt = Attempt(len(job.attempts) + 1, job.next_submission_id, queue.cluster, from_step, now)
    job = forget_after(queue.united(job), event.from_step)
    job = replace(job, attempts=(*job.attempts, attempt), waits_for="", waits_until=0.0)
    again = f"job {job.job_id}: attempt {attempt.number} goes on from {step_text(event.from_step)}"
    said: List[Action] = [Say(again)] if attempt.number > 1 else []
    return queue.with_job(job), [Record(job), *said, Submit(job, event.overrides, event.variables)]


def _close(queue: Queue, job: DurableJob, found: Judgement, now: float, pause_s: Optional[float] = None) -> Step:
    """The newest attempt has ended; the job ends with it, or waits for the next one."""
    job = job.with_last(ended_at=now, verdict=found.verdict, reason=found.reason, signature=found.signature)
    attempt = job.attempts[-1]
    hung = {name: why for name, why in queue.hung.items() if name != attempt.submission_id}
    queue = replace(queue, hung=hung)
    if job.outcome is not None:  # it was stopped before
        return queue.with_job(job), [Record(job)]
    ends = {Verdict.SUCCEEDED: Result.SUCCEEDED, Verdict.STOPPED: Result.STOPPED, Verdict.PROGRAM: Result.FAILED}
    if found.verdict in ends:
        return _finish(queue, job, ends[found.verdict], found.reason, now)
    wait_s = next_pause_s(job) if pause_s is None else pause_s
    job = replace(job, waits_until=now + wait_s, waits_for=f"attempt {attempt.number} ended: {found.reason}")
    said = f"job {job.job_id}: attempt {attempt.number} ended ({found.verdict}): {found.reason}"
    return queue.with_job(job), [Record(job), Say(said)]


def _finish(queue: Queue, job: DurableJob, result: Result, reason: str, now: float) -> Step:
    job = replace(job, outcome=Outcome(result, reason, now), waits_for="", waits_until=0.0)
    colon = f": {reason}" if reason else ""
    return queue.with_job(job), [Record(job), Say(f"job {job.job_id}: {result}{colon}")]


def _stop(queue: Queue, job_id: str, now: float) -> Step:
    """The end is recorded before Ray is asked, so that no restart takes the job up again."""
    job = queue.of(job_id)
    if job is None or job.outcome is not None:
        return queue, []
    queue, actions = _finish(queue, job, Result.STOPPED, "it was stopped", now)
    attempt = job.open_attempt
    return queue, [*actions, *([Stop(attempt.submission_id)] if attempt is not None else [])]
