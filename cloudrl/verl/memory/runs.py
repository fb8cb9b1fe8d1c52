"""What runs have needed: kept beside what was estimated, for later verdicts on the same recipe and model. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from cloudrl.verl.memory.workload import Lengths
from cloudrl.verl.metrics import Step

ALLOCATED, RESERVED = "perf/max_memory_allocated_gb", "perf/max_memory_reserved_gb"
"""verl 0.9.1, workers/engine_workers.py; GiB of the trainer's process, the most so far, on one rank."""
_OF_ACTOR = "actor/"
_LENGTHS = ("prompt_length/mean", "response_length/mean")
_LAST_STEPS = 20
"""Of so many steps the mean length and time count: answers grow while a model learns."""


@dataclass(frozen=True)
class RunMemory:
    """One run.

    Attributes:
        submission_id: of its job.
        recipe, model: what it was.
        shape: nodes, GPUs and card, in words.
        estimate_gib: what training alone would need of a GPU: low, likely, high.
        allocated_gib, reserved_gib: what it needed; 0 before it has reported any.
        prompt_tokens, answer_tokens: in the mean; 0 before it has reported any.
        step_s: seconds of a step in the mean, with saves and validations; 0 before it has reported any.
    """

    submission_id: str
    recipe: str = ""
    model: str = ""
    shape: str = ""
    estimate_gib: tuple[float, ...] = ()
    allocated_gib: float = 0.0
    reserved_gib: float = 0.0
    prompt_tokens: float = 0.0
    answer_tokens: float = 0.0
    step_s: float = 0.0

    @property
    def sentence(self) -> str:
        """What was estimated beside what was seen; "" without the latter."""
        if not self.allocated_gib:
            return ""
        seen = f"training used at most {self.allocated_gib:.1f} GiB of a GPU"
        seen += f" (reserved {self.reserved_gib:.1f})" if self.reserved_gib else ""
        if not self.estimate_gib:
            return seen
        low, likely, high = self.estimate_gib
        return f"{seen}; estimated were {likely:.1f} ({low:.1f} to {high:.1f})"

    def to_line(self) -> str:
        """As a line of the file that keeps them."""
        return json.dumps({name: value for name, value in asdict(self).items() if value})


@dataclass
class MemorySeen:
    """Collects what the steps of one run say.

    seen.add(step.metrics) for each of them, then seen.of(run)
    """

    allocated_gib: float = 0.0
    reserved_gib: float = 0.0
    lengths: list[tuple[float, float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, metrics: Mapping[str, float]) -> None:
        """One step's metrics."""
        self.allocated_gib = max(self.allocated_gib, allocated_gib(metrics))
        self.reserved_gib = max(self.reserved_gib, _number(metrics, RESERVED))
        prompt, answer = (_number(metrics, key) for key in _LENGTHS)
        if prompt and answer:
            self.lengths = [*self.lengths[1 - _LAST_STEPS :], (prompt, answer)]
        if step_s := Step(0, metrics).step_s:
            self.seconds = [*self.seconds[1 - _LAST_STEPS :], step_s]

    def of(self, run: RunMemory) -> RunMemory:
        """The run with what was seen of it."""
        count = len(self.lengths) or 1
        prompt, answer = (sum(pair[at] for pair in self.lengths) / count for at in (0, 1))
        return replace(
            run,
            allocated_gib=round(self.allocated_gib, 3),
            reserved_gib=round(self.reserved_gib, 3),
            prompt_tokens=round(prompt, 1),
            answer_tokens=round(answer, 1),
            step_s=round(sum(self.seconds) / (len(self.seconds) or 1), 1),
        )


def allocated_gib(metrics: Mapping[str, float]) -> float:
    """The most that training has allocated on a GPU so far; 0 where a step does not say."""
    return _number(metrics, ALLOCATED)


def _number(metrics: Mapping[str, float], key: str) -> float:
    value = metrics.get(key, metrics.get(f"{_OF_ACTOR}{key}", 0.0))
    return value if math.isfinite(value) and value > 0 else 0.0


def parse_runs(lines: Iterable[str]) -> tuple[RunMemory, ...]:
    """The runs of a file, the last one last; a later line of a run adds to an earlier one."""
    runs: dict[str, RunMemory] = {}
    for row in _rows(lines):
        identifier = row["submission_id"]
        before = runs.pop(identifier, RunMemory(identifier))
        runs[identifier] = replace(before, **row)
    return tuple(runs.values())


def _rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    kinds = {
        each.name: str if each.name in ("submission_id", "recipe", "model", "shape") else float
        for each in fields(RunMemory)
    }
    for line in lines:
        try:
            row = json.loads(line)
            if not isinstance(row["submission_id"], str):
                continue
            estimate = tuple(float(value) for value in row.pop("estimate_gib", ()))
            found = {name: kinds[name](value) for name, value in row.items() if name in kinds}
            yield found | ({"estimate_gib": estimate} if len(estimate) == len(("low", "likely", "high")) else {})
        except (ValueError, TypeError, KeyError, AttributeError):
            continue  # of a version to come, or cut off


def earlier_run(runs: Iterable[RunMemory], recipe: str, model: str) -> RunMemory | None:
    """The last run of a recipe with a model that has reported anything."""
    alike = [
        run for run in runs if (run.recipe, run.model) == (recipe, model) and (run.allocated_gib or run.answer_tokens)
    ]
    return alike[-1] if alike else None


def run_alike(runs: Iterable[RunMemory], planned: RunMemory) -> RunMemory | None:
    """The last run that says how long a step takes, of the same recipe with the same model on the same GPUs."""
    shape = (planned.recipe, planned.model, planned.shape)
    alike = [run for run in runs if run.step_s and (run.recipe, run.model, run.shape) == shape]
    return alike[-1] if alike else None


def lengths_of(limits: Lengths, run: RunMemory | None, prompt_tokens: float | None, how: str) -> Lengths:
    """Lengths with their mean, as far as it is known.

    Args:
        limits: of prompt and answer.
        run: an earlier one of the recipe.
        prompt_tokens: mean of the prompts of the data; None if they are not here.
        how: how those were counted.
    """
    if run is not None and run.answer_tokens:
        prompt = prompt_tokens or run.prompt_tokens
        mean = min(prompt + run.answer_tokens, limits.longest)
        return replace(limits, mean=mean, source=f"run {run.submission_id}")
    if prompt_tokens is not None:
        prompt = min(prompt_tokens, limits.prompt)
        return replace(limits, prompt_mean=prompt, source=how)
    return limits
