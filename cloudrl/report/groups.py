"""Runs of one group, such as several seeds, as one curve: mean and spread of each metric at each step. Pure."""

import math
import posixpath
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, takewhile
from pathlib import PurePosixPath
from statistics import fmean
from typing import Any, NamedTuple, Protocol

from cloudrl.report.series import elapsed_seconds, point_limit, shortened, summary, thinned
from cloudrl.verl.keys import EXPERIMENT, LOCAL_DIR, is_of_one_run, is_seed
from cloudrl.verl.metrics import Step

_SEPARATORS = " ._-("


class Run(Protocol):
    """What of a run decides on its group, and is averaged; see `cloudrl.report.model.RunReport`."""

    @property
    def name(self) -> str:
        """Of the run."""

    @property
    def group(self) -> str:
        """The label that it was submitted with; "" if none."""

    @property
    def config(self) -> Mapping[str, str]:
        """Key of verl -> value."""

    @property
    def steps(self) -> Sequence[Step]:
        """By number."""


class Spread(NamedTuple):
    """How a number varies over runs.

    Attributes:
        mean: of all of them.
        sd: their standard deviation, as that of a sample (n - 1).
        low: the least of them.
        high: the greatest of them.
        n: how many runs have it; two at least.
    """

    mean: float
    sd: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """That of finite numbers, two at least; `statistics.stdev` works with fractions, too slow for 10,000 steps."""
        n = len(values)
        mean = sum(values) / n
        return cls(mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1)), min(values), max(values), n)


class GroupStep(NamedTuple):
    """One step of a group.

    Attributes:
        step: its number.
        elapsed_s: mean of the seconds of training up to its end.
        metrics: those that are finite in two runs or more.
    """

    step: int
    elapsed_s: float
    metrics: Mapping[str, Spread]


@dataclass(frozen=True)
class Group:
    """Runs that are repetitions of each other.

    Attributes:
        name: as `--group` says, or what their names have in common.
        places: of its runs in the report; two at least.
        runs: the same runs.
    """

    name: str
    places: tuple[int, ...]
    runs: tuple[Run, ...]

    @cached_property
    def steps(self) -> tuple[GroupStep, ...]:
        """By number, those that two runs or more have."""
        rows: dict[int, list[tuple[float, Mapping[str, float]]]] = defaultdict(list)
        for run in self.runs:
            for step, elapsed_s in zip(run.steps, elapsed_seconds(run.steps), strict=True):
                rows[step.step].append((elapsed_s, step.metrics))
        shared = [(number, row) for number, row in sorted(rows.items()) if len(row) > 1]
        # where a slow run has ended the mean would go back, and an axis cannot
        elapsed = accumulate((fmean(elapsed_s for elapsed_s, _ in row) for _, row in shared), max)
        return tuple(
            GroupStep(number, elapsed_s, _spreads(metrics for _, metrics in row))
            for (number, row), elapsed_s in zip(shared, elapsed, strict=True)
        )

    @property
    def summary(self) -> dict[str, Spread | None]:
        """What the overview says of it; None where fewer than two runs have a value."""
        rows = [summary(run.steps) for run in self.runs]
        columns = {key: [value for row in rows if (value := row[key]) is not None] for key in rows[0]}
        return {key: Spread.of(values) if len(values) > 1 else None for key, values in columns.items()}


def groups_of(runs: Sequence[Run]) -> tuple[Group, ...]:
    """Groups of two runs or more: those of one label, and those of one configuration but for the seed.

    Two jobs that have trained the same run are no repetition of it.
    """
    members: dict[Any, list[int]] = defaultdict(list)
    for place, run in enumerate(runs):
        if run.group or run.config:
            members[run.group or frozenset(_compared(run.config).items())].append(place)
    found = [
        tuple(places)
        for places in members.values()
        if len(places) > 1 and (runs[places[0]].group or _have_own_folders([runs[place] for place in places]))
    ]
    names = _told_apart([_name([runs[place] for place in places]) for places in found])
    return tuple(
        Group(name, places, tuple(runs[place] for place in places))
        for name, places in zip(names, found, strict=True)
    )  # fmt: skip


def group_series(group: Group, shares: int, top: frozenset[str]) -> dict[str, Any]:
    """What the page draws of a group: as `series.run_series` has it of a run.

    A series has `mean`, `sd`, `low` and `high`; and `n`, a list where it is not the same at each of its steps.

    Args:
        group: the group.
        shares: how many runs and groups share the page.
        top: keys that keep more points than others.
    """
    columns: dict[str, tuple[list[int], list[Spread]]] = defaultdict(lambda: ([], []))
    for place, step in enumerate(group.steps):
        for key, spread in step.metrics.items():
            columns[key][0].append(place)
            columns[key][1].append(spread)
    series = {}
    for key, (places, spreads) in columns.items():
        indices = thinned([spread.mean for spread in spreads], point_limit(key, shares, top))
        shown = [spreads[index] for index in indices]
        counts = [spread.n for spread in shown]
        mine: dict[str, Any] = {
            field: [shortened(getattr(spread, field)) for spread in shown] for field in ("mean", "sd", "low", "high")
        }
        mine["n"] = counts[0] if len(set(counts)) == 1 else counts
        if len(indices) < len(group.steps):
            mine["i"] = [places[index] for index in indices]
        series[key] = mine
    return {
        "steps": [step.step for step in group.steps],
        "elapsed": [round(step.elapsed_s, 1) for step in group.steps],
        "series": series,
    }


def groups_json(groups: Iterable[Group]) -> list[dict[str, Any]]:
    """All of them, for a program."""
    return [
        {
            "name": group.name,
            "runs": [run.name for run in group.runs],
            "steps": [
                {"step": step.step, "metrics": {key: spread._asdict() for key, spread in step.metrics.items()}}
                for step in group.steps
            ],
        }
        for group in groups
    ]


def _spreads(rows: Iterable[Mapping[str, float]]) -> dict[str, Spread]:
    values: dict[str, list[float]] = defaultdict(list)
    for metrics in rows:
        for key, value in metrics.items():
            if math.isfinite(value):
                values[key].append(value)
    return {key: Spread.of(numbers) for key, numbers in values.items() if len(numbers) > 1}


def _compared(config: Mapping[str, str]) -> dict[str, str]:
    """What is the same in repetitions of a run: all but seeds and the run's own name and folders.

    verl repeats name and folder under other keys. Of a path only what is below the cluster's folder counts, as
    each cluster has its own for data, models and checkpoints.
    """
    folder = config.get(LOCAL_DIR, "")
    own = {config.get(EXPERIMENT), folder} - {None, ""}
    return {
        key: _below_cluster(value, folder) if value.startswith("/") else value
        for key, value in config.items()
        if value not in own and not is_seed(key) and not is_of_one_run(key)
    }


def _below_cluster(path: str, run_folder: str) -> str:
    """The path below what it has in common with the folder of the run; its last two parts where that is not known."""
    if not run_folder.startswith("/"):
        return "/".join(PurePosixPath(path).parts[-2:])
    common = posixpath.commonpath([run_folder, path])
    return posixpath.relpath(path, common)


def _have_own_folders(runs: Sequence[Run]) -> bool:
    folders = [folder for run in runs if (folder := run.config.get(LOCAL_DIR))]
    return len(set(folders)) == len(folders)


def _name(runs: Sequence[Run]) -> str:
    if runs[0].group:
        return runs[0].group
    names = [run.name for run in runs]
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    common = "".join(letters[0] for letters in same).rstrip("0123456789").rstrip(_SEPARATORS)
    return common if common and common not in names else f"{names[0]} and {len(names) - 1} more"


def _told_apart(names: Sequence[str]) -> Iterator[str]:
    for place, name in enumerate(names, 1):
        yield name if names.count(name) == 1 else f"{name} ({place})"
