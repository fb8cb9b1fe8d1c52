"""One look at a job that runs, which `cloudrl watch` shows: its numbers, nodes and cost, and what goes wrong."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cloudrl.hangs.rollout import Unfinished, parse
from cloudrl.jobs.events import Ended, Event, Line, Progress
from cloudrl.jobs.evidence import Evidence, RunWarning
from cloudrl.jobs.format import as_fields
from cloudrl.jobs.history import add_step
from cloudrl.jobs.node_warnings import interrupted_text, interruption_notice, node_warnings
from cloudrl.jobs.pools import mode_of_job
from cloudrl.jobs.warnings import find_warnings
from cloudrl.protocol.job_phases import JobState, phase_text
from cloudrl.protocol.report import NodeReport, Usage
from cloudrl.protocol.stops import Stop
from cloudrl.protocol.wire import to_json
from cloudrl.transport.ray_job import JobStatus, RayJob
from cloudrl.verl.balance import Balance, balance
from cloudrl.verl.metrics import FailedPrompts, Step, plain, tool_failures
from cloudrl.verl.startup import Starting

_LINES, _LINE_CHARACTERS = 60, 1000
_STEPS_OF_TOOLS = 10
_HOUR_OF_SAMPLES = 720
_BALANCED_STEPS, _RECENT_S = 5, 600.0


@dataclass(frozen=True)
class Price:
    """What the cluster had cost at a time, in US dollars.

    Attributes:
        cost: so far; None if unknown.
        at: seconds since the epoch.
    """

    cost: float | None
    per_hour: float
    at: float

    def cost_at(self, at: float) -> float | None:
        """What it has cost at another time, if it goes on; None if unknown."""
        return self.cost + self.per_hour * max(0.0, at - self.at) / 3600 if self.cost is not None else None


@dataclass(frozen=True)
class Look:
    """A job at one moment.

    Attributes:
        url: of the job.
        status: as Ray has it.
        seconds: since it has started; None before.
        steps: of its run, those of earlier attempts included.
        progress: where it stands; None before its first step, and without `eta_s` after the end of the job.
        nodes: of the cluster; none where no agent answers.
        cost: of the cluster so far, in US dollars; None if unknown.
        cost_at_end: when the last step is done, at the present pace; None after the end of the job.
        usage: rank -> how busy the node was in the last hour, oldest first.
        starting: what it does before its first step; None from then on, and while nothing says it.
        starting_s: seconds since that stage was seen first.
        lines: the end of its log, without terminal codes.
        warnings: what goes wrong.
        notice: why nothing new comes, if so.
        phase: where it stands, such as `gen for 2 min 03 s, usually 40 s`; "" if unknown.
        balance: how rollout and training keep pace; None in a mode in which each step waits for its own answers.
        pools: rank -> what the node is for, where the rollout has nodes of its own; else empty.
    """

    url: str
    status: JobStatus
    seconds: float | None = None
    steps: Sequence[Step] = ()
    progress: Progress | None = None
    nodes: tuple[NodeReport, ...] = ()
    usage: Mapping[int, Sequence[Usage]] = field(default_factory=dict)
    cost: float | None = None
    cost_at_end: float | None = None
    starting: Starting | None = None
    starting_s: float = 0.0
    lines: tuple[str, ...] = ()
    warnings: tuple[RunWarning, ...] = ()
    notice: str = ""
    phase: str = ""
    balance: Balance | None = None
    pools: Mapping[int, str] = field(default_factory=dict)


class JobRecord:
    """What is known of a job, and grows with its events.

    Args:
        url: of the job.

    Attributes:
        notice: why nothing new comes, until something does.
        price: of the cluster; None if unknown.
        stops: its tasks that wait for a debugger.
        job: where the training of its cluster stands; None if unknown.
        pools: rank -> what the node is for, where the rollout has nodes of its own; else empty.
    """

    def __init__(self, url: str) -> None:
        self.notice = ""
        self.price: Price | None = None
        self.stops: Sequence[Stop] = ()
        self.job: JobState | None = None
        self.pools: Mapping[int, str] = {}
        self._url = url
        self._status = JobStatus.UNKNOWN
        self._started_at: float | None = None
        self._ended_at: float | None = None
        self._steps: list[Step] = []
        self._progress: Progress | None = None
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._failures: deque[int] = deque([0], maxlen=_STEPS_OF_TOOLS)
        self._failed_prompts = FailedPrompts()
        self._mode = ""
        self._prompts: Unfinished | None = None
        self._starting: Starting | None = None
        self._starting_at: float | None = None
        self._nodes: tuple[NodeReport, ...] = ()
        self._usage: dict[int, deque[Usage]] = {}

    def add_steps(self, steps: Iterable[Step]) -> None:
        """The next steps of the run, such as those of the attempts before this job."""
        for step in steps:
            add_step(self._steps, step)

    def add_event(self, event: Event) -> None:
        """The next event of its log."""
        self.notice = ""
        if isinstance(event, Line):
            self._failures[-1] += tool_failures(event.text)
            self._failed_prompts.read(event.text)
            self._prompts = parse(event.text) or self._prompts
            if text := plain(event.readable).rstrip():
                self._lines.append(text[:_LINE_CHARACTERS])
        elif isinstance(event, Starting):
            self._starting, self._starting_at = event, None
        elif isinstance(event, Step):
            self._starting = None
            self.add_steps([event])
            self._failures.append(0)
            self._failed_prompts = FailedPrompts()
        elif isinstance(event, Progress):
            self._progress = event
        elif isinstance(event, Ended):
            self._status = event.status

    def add_status(self, job: RayJob) -> None:
        """What Ray says of it now."""
        self.notice = ""
        self._status, self._started_at, self._ended_at = job.status, job.start_time, job.end_time
        self._mode = mode_of_job(job)

    def add_nodes(self, nodes: Iterable[NodeReport]) -> None:
        """What the nodes say now."""
        self._nodes = tuple(nodes)
        before = self._usage
        self._usage = {node.rank: before.get(node.rank, deque(maxlen=_HOUR_OF_SAMPLES)) for node in self._nodes}
        for node in self._nodes:
            samples = self._usage[node.rank]
            if node.usage is not None and (not samples or samples[-1].sampled_at < node.usage.sampled_at):
                samples.append(node.usage)

    def add_history(self, usage: Mapping[int, Sequence[Usage]]) -> None:
        """What the nodes remember of the time before they were asked."""
        for rank, samples in self._usage.items():
            first = samples[0].sampled_at if samples else math.inf
            earlier = [sample for sample in usage.get(rank, ()) if sample.sampled_at < first]
            self._usage[rank] = deque([*earlier, *samples], maxlen=_HOUR_OF_SAMPLES)

    def look(self, now: float) -> Look:
        """The job at a time, in seconds since the epoch."""
        if self._starting is not None and self._starting_at is None:
            self._starting_at = now
        left_s = self._progress.eta_s if self._progress is not None else None
        job = self.job if self.job is not None and self._is_of_this_job(self.job) else None
        per_hour = self.price.per_hour if self.price is not None else None
        evidence = Evidence(
            self._steps, self._usage, tuple(self._failures), left_s, self.stops, now, job, per_hour,
            self._failed_prompts.count, self._failed_prompts.exception, self.pools, self._url,
        )  # fmt: skip
        progress = self._progress
        if self._status.is_terminal and progress is not None:
            progress, left_s = replace(progress, eta_s=None), None
        cost = self.price.cost_at(now) if self.price is not None else None
        at_end = self.price.cost_at(now + left_s) if self.price is not None and left_s is not None else None
        return Look(
            url=self._url,
            status=self._status,
            seconds=max(0.0, (self._ended_at or now) - self._started_at) if self._started_at else None,
            steps=tuple(self._steps),
            progress=progress,
            nodes=self._nodes,
            usage={rank: tuple(samples) for rank, samples in self._usage.items()},
            cost=cost,
            cost_at_end=at_end,
            starting=None if self._status.is_terminal else self._starting,
            starting_s=now - (self._starting_at or now),
            lines=tuple(self._lines),
            warnings=(*self._notices(now), *find_warnings(evidence), *self._node_warnings()),
            notice=self.notice,
            phase=phase_text(job, now) if job is not None else "",
            balance=balance(self._mode, self._steps[-_BALANCED_STEPS:], self._prompts, self.pools, self._recent()),
            pools=self.pools,
        )

    def _recent(self) -> dict[int, list[Usage]]:
        """How busy nodes were in the last minutes that they have told of."""
        return {
            rank: [sample for sample in samples if sample.sampled_at >= samples[-1].sampled_at - _RECENT_S]
            for rank, samples in self._usage.items()
        }

    def _notices(self, now: float) -> Iterator[RunWarning]:
        if (notice := interruption_notice(self._nodes, now)) is not None:
            yield RunWarning("spot", notice.text, notice.hint, interrupted_text(self._nodes))

    def _node_warnings(self) -> Iterator[RunWarning]:
        for kind, notice in node_warnings(self._nodes).items():
            yield RunWarning(str(kind), notice.text, notice.hint)

    def _is_of_this_job(self, job: JobState) -> bool:
        return not self._status.is_terminal and self._url.rpartition("/")[2] == job.submission_id


def look_fields(look: Look) -> Mapping[str, Any]:
    """A look for a program, without the series and the log, which are events of their own."""
    return {
        "event": "look",
        "url": look.url,
        "status": str(look.status),
        "seconds": look.seconds,
        "starting": as_fields(look.starting) if look.starting is not None else None,
        "progress": as_fields(look.progress) if look.progress is not None else None,
        "nodes": [to_json(node) for node in look.nodes],
        "cost": look.cost,
        "cost_at_end": look.cost_at_end,
        "warnings": [
            {"kind": warning.kind, "seen": warning.seen, "remedy": warning.remedy} for warning in look.warnings
        ],
        "notice": look.notice,
        "phase": look.phase,
        "balance": to_json(look.balance) if look.balance is not None else None,
        "pools": {str(rank): pool for rank, pool in look.pools.items()},
    }
