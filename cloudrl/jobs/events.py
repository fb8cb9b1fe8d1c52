"""Log lines -> events: a pure function of the lines, so that a stored log gives what the live one gave."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from cloudrl.logs.causes import Cause
from cloudrl.logs.causes.evidence import LAST_LINES
from cloudrl.logs.causes.printed import shortened
from cloudrl.logs.sent_files import by_own_names
from cloudrl.transport.ray_job import JobStatus
from cloudrl.units import duration_text
from cloudrl.verl.charts import IN_PROGRESS, REWARD
from cloudrl.verl.metrics import Step, parse_step, parse_total_steps, without_ansi
from cloudrl.verl.startup import Starting, StartReader

_PACE_STEPS = 5


@dataclass(frozen=True)
class Line:
    """One line of the log, as it was written; `str` is `readable` without terminal codes such as colours."""

    text: str

    def __str__(self) -> str:
        return without_ansi(self.readable)

    @property
    def readable(self) -> str:
        """With files that were sent with the job by their own names: `./reward.py`."""
        return by_own_names(self.text)


@dataclass(frozen=True)
class Progress:
    """Where the training stands after a step."""

    step: int
    total_steps: int | None
    """None as long as neither the command nor the log has said it."""
    metrics: Mapping[str, float]
    """Those that verl has reported and that are finite, by `Chart.progress`: reward; loss of a fine-tuning."""
    step_s: float | None
    """Seconds a step: the mean of the last five, and validation and saving as seldom as they have come so far."""
    eta_s: float | None
    """Seconds until the last step at that pace; None after the first step, which is longer than those to come."""
    reported: Mapping[str, float] = field(default_factory=dict, compare=False, repr=False)
    """Every metric that verl has reported for the step, by verl's own names, such as `actor/kl_loss`."""

    @property
    def reward(self) -> float | None:
        """Mean reward of the step's answers."""
        return self.metrics.get(REWARD.progress)

    def __str__(self) -> str:
        """For example `step 12/28  reward 0.412  2.1 s/step  ETA 33 s`; what is not known is left out."""
        total = f"/{self.total_steps}" if self.total_steps is not None else ""
        parts = [f"step {self.step}{total}", *(f"{name} {value:.3f}" for name, value in self.metrics.items())]
        if self.step_s is not None:
            parts.append(f"{self.step_s:.1f} s/step")
        if self.eta_s is not None:
            parts.append(f"ETA {duration_text(self.eta_s)}")
        return "  ".join(parts)


@dataclass(frozen=True)
class Ended:
    """The job has ended and its log was read to the end."""

    status: JobStatus
    message: str
    """What Ray says; for a failed job it quotes the end of the log."""
    cause: Cause | None = None
    """The first root cause of a failure, over all nodes; None where nothing says it."""

    def __str__(self) -> str:
        """For example `ended: SUCCEEDED`, and the first cause of a failure."""
        return f"ended: {self.status}" + (f", {self.cause}" if self.cause is not None else "")

    @property
    def succeeded(self) -> bool:
        """Whether the job reached its end by itself, with exit code 0."""
        return self.status is JobStatus.SUCCEEDED


Event: TypeAlias = Line | Starting | Step | Progress | Ended


class Pace:
    """Seconds a step, now and for the steps to come.

    The first step of a job loads, compiles and fills caches: it is left out as soon as there is another one.
    """

    def __init__(self) -> None:
        self._training_s: deque[float] = deque(maxlen=_PACE_STEPS)
        self._occasional_s, self._steps = 0.0, 0

    def add(self, step: Step) -> None:
        """The next step; one without a time, such as a validation before training, does not count."""
        if step.step_s is None:
            return
        if self._steps == 1:
            self._training_s.clear()
        self._training_s.append(step.step_s - step.occasional_s)
        self._occasional_s += step.occasional_s
        self._steps += 1

    @property
    def is_warm(self) -> bool:
        """Whether it is that of the steps to come."""
        return self._steps > 1

    @property
    def step_s(self) -> float | None:
        """The mean of the last five, and of validation and saving that of all steps; None before the first."""
        if not self._steps:
            return None
        return sum(self._training_s) / len(self._training_s) + self._occasional_s / self._steps


class EventReader:
    """Reads a log line by line; keeps what later events need: total steps, pace, the last lines."""

    def __init__(self, total_steps: int | None = None) -> None:
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._total_steps = total_steps
        self._pace = Pace()
        self._start: StartReader | None = StartReader()

    def read(self, lines: Iterable[str]) -> Iterator[Line | Starting | Step | Progress]:
        """Each line itself, and after it what it says about the training."""
        for line in lines:
            yield Line(line)
            self._total_steps = parse_total_steps(line) or self._total_steps
            self.last_lines.append(shortened(line))
            step = parse_step(line)
            if step is None:
                if self._start is not None and (stage := self._start.read(line)) is not None:
                    yield stage
                continue
            self._start = None
            yield step
            self._pace.add(step)
            if has_progress(step):
                yield self._progress(step)

    def _progress(self, step: Step) -> Progress:
        pace_s = self._pace.step_s
        left = None if self._total_steps is None else max(0, self._total_steps - step.step)
        is_known = left == 0 or self._pace.is_warm
        eta_s = left * pace_s if left is not None and pace_s is not None and is_known else None
        metrics = {name: value for name, value in _metrics(step).items() if math.isfinite(value)}
        return Progress(step.step, self._total_steps, metrics, step_s=pace_s, eta_s=eta_s, reported=step.metrics)


def has_progress(step: Step) -> bool:
    """Whether a `Progress` follows a step; none follows the validation before training."""
    return step.step_s is not None or bool(_metrics(step))


def _metrics(step: Step) -> dict[str, float]:
    """What the progress line shows of a step, as far as verl has reported it."""
    values = {chart.progress: chart.value(step.metrics) for chart in IN_PROGRESS}
    return {name: value for name, value in values.items() if value is not None}
