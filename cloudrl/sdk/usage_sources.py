"""How busy nodes were, and what they have cost: asked from a cluster that answers, or from what is kept of one."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from cloudrl.errors import InputError
from cloudrl.foreign import NOT_AS_EXPECTED, Malformed, parse_object, read_file
from cloudrl.logs.archive import Archive
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.report import Usage
from cloudrl.protocol.usage_rows import FILE, from_row
from cloudrl.report import Table
from cloudrl.report.usage import NodeUsage
from cloudrl.saves.archive import AGENT
from cloudrl.saves.names import OURS
from cloudrl.transport.ray_job import RayJob
from cloudrl.units import dollars_text

_BEFORE_AND_AFTER_S = 60.0


class Span(NamedTuple):
    """A time that is drawn, in seconds since the epoch."""

    since: float
    until: float

    def of(self, samples: Iterable[Usage]) -> tuple[Usage, ...]:
        """Those within it, by their times."""
        within = (sample for sample in samples if self.since <= sample.sampled_at <= self.until)
        return tuple(sorted(within, key=lambda sample: sample.sampled_at))


def span_of(jobs: Iterable[RayJob]) -> Span:
    """From the start of the first job to the end of the last, and a minute more; open if these are unknown."""
    jobs = list(jobs)
    starts, ends = [job.start_time for job in jobs if job.start_time], [job.end_time for job in jobs]
    ended = [end for end in ends if end]
    until = max(ended) + _BEFORE_AND_AFTER_S if ended and len(ended) == len(ends) else math.inf
    return Span(min(starts, default=_BEFORE_AND_AFTER_S) - _BEFORE_AND_AFTER_S, until)


def asked_usage(agent: AgentClient, span: Span) -> tuple[NodeUsage, ...]:
    """Of a cluster that answers: the last day by the minute, and what has come since its last minute.

    Raises:
        ConnectionFailed: it does not answer.
    """
    with suppress(InputError):  # agents of an older release
        day, hour = agent.usage("day"), agent.usage("hour")
        by_rank = {rank: _joined(day.get(rank, ()), hour.get(rank, ())) for rank in sorted({*day, *hour})}
        return _nodes(by_rank, span)
    return ()


class KeptUsage:
    """What rank 0 of a cluster that is gone has kept of it.

    Args:
        archive: the logs below a folder of checkpoints.
        runs: ids of runs in it.
    """

    def __init__(self, archive: Archive, runs: Iterable[str]) -> None:
        self._runs = tuple(dict.fromkeys(runs))
        self._lines = {run: list(_lines(archive, run)) for run in self._runs}

    def nodes(self, span: Span) -> tuple[NodeUsage, ...]:
        """How busy they were."""
        samples: dict[int, list[Usage]] = {}
        for line in (line for lines in self._lines.values() for line in lines):
            with suppress(ValueError, TypeError, AttributeError):
                for rank, row in line["nodes"].items():
                    samples.setdefault(int(rank), []).append(from_row(row))
        return _nodes(dict(sorted(samples.items())), span)

    def cost_table(self, folder: Path) -> Table:
        """What they had cost when the agents wrote it down last; without rows where these knew no price.

        Args:
            folder: of the checkpoints, where each node writes it down once more.
        """
        rows = []
        for run in self._runs:
            priced = [line for line in self._lines[run] if isinstance(line.get("cost"), int | float)]
            last: Mapping[str, Any] = priced[-1] if priced else {}
            cost, per_hour = last.get("cost", _kept_cost(folder, run)), last.get("per_hour")
            if cost:
                rows.append(
                    (run, dollars_text(per_hour) if isinstance(per_hour, int | float) else "-", dollars_text(cost))
                )
        return Table("Cost", ("run of the cluster", "an hour", "in all"), tuple(rows))


def _joined(day: tuple[Usage, ...], hour: tuple[Usage, ...]) -> tuple[Usage, ...]:
    last = day[-1].sampled_at if day else -math.inf
    return (*day, *(usage for usage in hour if usage.sampled_at > last))


def _nodes(samples_by_rank: Mapping[int, Iterable[Usage]], span: Span) -> tuple[NodeUsage, ...]:
    nodes = (NodeUsage(rank, span.of(samples)) for rank, samples in samples_by_rank.items())
    return tuple(node for node in nodes if node.samples)


def _lines(archive: Archive, run: str) -> Iterator[Mapping[str, Any]]:
    path = f"{AGENT}/{FILE}"
    for file in archive.files:
        if file.run == run and file.path.partition("~")[0] == path:
            for text in archive.lines(file):
                with suppress(Malformed):
                    line = parse_object(text)
                    if isinstance(line.get("nodes"), dict):
                        yield line


def _kept_cost(folder: Path, run: str) -> float:
    """As the agents remember it for the next attempt of the run (`cloudrl.node.attempts`)."""
    with suppress(OSError, *NOT_AS_EXPECTED):
        return float(parse_object(read_file(folder / OURS / "cost" / f"{run}.json"))["cost_before"])
    return 0.0
