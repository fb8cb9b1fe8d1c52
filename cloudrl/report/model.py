"""What a report holds, whatever it is drawn as."""

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from cloudrl.logs.causes import Cause
from cloudrl.report.groups import Group, groups_json, groups_of
from cloudrl.report.series import elapsed_seconds, finite
from cloudrl.report.usage import NodeUsage, usage_json
from cloudrl.verl.metrics import Step


@dataclass(frozen=True)
class Sample:
    """One answer of the model.

    Attributes:
        truth: what the answer should have been; "" if unknown.
        more: what the reward function returned beside the score.
        prompt_id: the same for the same prompt, whatever is shown of it; prompts may begin alike.
    """

    step: int
    prompt: str
    answer: str
    score: float | None
    truth: str = ""
    more: Mapping[str, str] = field(default_factory=dict)
    prompt_id: str = ""


class StepAnswers(NamedTuple):
    """How many answers verl has written down at a step, and how many of them are in the report.

    Attributes:
        answers: in the file, or in what was read of it.
        prompts: likewise, different ones.
        per_prompt: most answers of a prompt.
        is_whole: whether the file was read to its end.
    """

    step: int
    answers: int
    prompts: int
    per_prompt: int
    shown: int
    shown_prompts: int
    is_whole: bool = True

    def __str__(self) -> str:
        """For example `8 answers each of 64 prompts; 40 of them, of 5 prompts, are on this page`."""
        one = "s" * (self.prompts != 1)
        text = f"{self.answers:,} answer{'s' * (self.answers != 1)} of {self.prompts:,} prompt{one}"
        if self.answers == self.prompts * self.per_prompt:
            text = f"{self.per_prompt:,} answer{'s' * (self.per_prompt != 1)} each of {self.prompts:,} prompt{one}"
        if not self.is_whole:
            text = f"more than {text}, as only the start of the file was read"
        if self.shown < self.answers:
            some = f"{self.shown_prompts} prompt{'s' * (self.shown_prompts != 1)}"
            text += f"; {self.shown} of them, of {some}, are on this page"
        return text


@dataclass(frozen=True)
class Table:
    """Rows of text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class RunReport:
    """One run, with all jobs that have trained it.

    Attributes:
        name: of the run.
        job: the last of its jobs, as a URL, or the path of its log.
        status: in Ray's words; "" where only a log is left.
        steps: by number, over all attempts.
        total_steps: that it is to have.
        config: key -> value, secrets masked: all that verl has printed, else the overrides of the job.
        about: what it is at a glance, by heading: command, overrides, versions, commit, start and duration.
        tables: nodes, attempts, checkpoints, cost.
        usage: how busy the nodes were over time.
        samples: a choice of its answers.
        answers: how many there are at each step of `samples`.
        answer_steps: at how many steps verl has written answers.
        log: the last lines of the driver's log.
        group: that it was submitted with; "" if none.
        cause: why it failed; None where it has not, or nothing says why.
        notes: what is missing here and why, one sentence each.
    """

    name: str
    job: str
    status: str = ""
    steps: tuple[Step, ...] = ()
    total_steps: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    usage: tuple[NodeUsage, ...] = ()
    samples: tuple[Sample, ...] = ()
    answers: tuple[StepAnswers, ...] = ()
    answer_steps: int = 0
    log: tuple[str, ...] = ()
    group: str = ""
    cause: Cause | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """Runs, side by side."""

    runs: tuple[RunReport, ...]

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Those of its runs that repeat each other, two or more."""
        return groups_of(self.runs)

    @property
    def keys(self) -> tuple[str, ...]:
        """Of all metrics, sorted."""
        return tuple(sorted({key for run in self.runs for step in run.steps for key in step.metrics}))

    def config_differences(self) -> Table:
        """The keys whose values are not the same in all runs."""
        keys = sorted({key for run in self.runs for key in run.config})
        values = {key: tuple(run.config.get(key, "") for run in self.runs) for key in keys}
        rows = tuple((key, *row) for key, row in values.items() if len(set(row)) > 1)
        return Table("Configuration", ("key", *(run.name for run in self.runs)), rows)

    def to_json(self) -> dict[str, Any]:
        """All of it, the numbers as they were reported; what is not finite is None, which JSON has."""
        return {"runs": [_run_json(run) for run in self.runs], "groups": groups_json(self.groups)}

    def to_csv(self) -> str:
        """A row for each step of each run, a column for each metric."""
        keys, text = self.keys, io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("run", "step", "elapsed_s", *keys))
        for run in self.runs:
            for step, elapsed_s in zip(run.steps, elapsed_seconds(run.steps), strict=True):
                values = (finite(step.metrics.get(key)) for key in keys)
                writer.writerow((run.name, step.step, round(elapsed_s, 3), *values))
        return text.getvalue()


def _run_json(run: RunReport) -> dict[str, Any]:
    steps = [
        {"step": step.step, "metrics": {key: finite(value) for key, value in step.metrics.items()}}
        for step in run.steps
    ]
    fields = {
        name: getattr(run, name)
        for name in ("name", "group", "job", "status", "total_steps", "about", "config", "notes")
    }
    return {
        **fields,
        "cause": None if run.cause is None else asdict(run.cause),
        "steps": steps,
        "tables": [asdict(table) for table in run.tables],
        "usage": usage_json(run.usage),
        "answers": [answers._asdict() for answers in run.answers],
        "samples": [asdict(sample) for sample in run.samples],
    }
