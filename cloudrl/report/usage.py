"""How busy the nodes of a run were over time, as series that a page can draw. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from cloudrl.protocol.folders import MEMORY
from cloudrl.protocol.report import Usage
from cloudrl.report.series import thinned

_POINTS = 400
_MOST_CURVES = 16


class Measure(NamedTuple):
    """What is drawn of each node."""

    title: str
    key: str


MEASURES = (
    Measure("GPU busy (%)", "gpu"),
    Measure("GPU memory (%)", "gpu_memory"),
    Measure("GPU power (W, all of a node)", "gpu_power"),
    Measure("CPU busy (%)", "cpu"),
    Measure("Memory (%)", "memory"),
    Measure(f"{MEMORY} (%)", "shm"),
    Measure("Ray's object store (%)", "store"),
    Measure("Disk of the checkpoints (%)", "disk"),
    Measure("Received (MB/s)", "received"),
    Measure("Sent (MB/s)", "sent"),
)


@dataclass(frozen=True)
class NodeUsage:
    """One node over time.

    Attributes:
        rank: of the node.
        samples: oldest first.
    """

    rank: int
    samples: tuple[Usage, ...]


def measures(usage: Usage) -> dict[str, float]:
    """What a sample says, by the keys of `MEASURES`."""
    percents = [gpu.utilization_percent for gpu in usage.gpus if gpu.utilization_percent is not None]
    powers = [gpu.power_w for gpu in usage.gpus if gpu.power_w is not None]
    rates = {"received": usage.received_bytes_per_s, "sent": usage.sent_bytes_per_s}
    drawn = {
        "gpu": fmean(percents) if percents else None,
        "gpu_memory": _share(
            sum(gpu.memory_used_mib or 0 for gpu in usage.gpus), sum(gpu.memory_total_mib or 0 for gpu in usage.gpus)
        ),
        "gpu_power": sum(powers) if powers else None,
        "cpu": usage.cpu_percent,
        "memory": _share(usage.memory_used_bytes, usage.memory_total_bytes),
        "shm": _share(usage.shm_used_bytes, usage.shm_total_bytes),
        "store": _share(usage.store_used_bytes, usage.store_total_bytes),
        "disk": _share(usage.disk_used_bytes, usage.disk_total_bytes),
        **{key: None if rate is None else rate / 1e6 for key, rate in rates.items()},
    }
    return {key: round(value, 2) for key, value in drawn.items() if value is not None}


def usage_series(nodes: Sequence[NodeUsage]) -> list[dict[str, Any]]:
    """Charts of which there is something to draw: {"title", "curves": [{"label", "x", "y"}]}, `x` since the epoch.

    Beyond 16 nodes a chart has the least busy, the busiest and the mean of all.
    """
    rows = {node.rank: [(sample.sampled_at, measures(sample)) for sample in node.samples] for node in nodes}
    charts = []
    for title, key in MEASURES:
        points = {
            rank: [(at, values[key]) for at, values in samples if key in values] for rank, samples in rows.items()
        }
        curves = [_curve(label, curve) for label, curve in _chosen(points) if curve]
        if curves:
            charts.append({"title": title, "curves": curves})
    return charts


def usage_json(nodes: Sequence[NodeUsage]) -> list[dict[str, Any]]:
    """All of it, for a program."""
    return [
        {"rank": node.rank, "samples": [{"at": sample.sampled_at, **measures(sample)} for sample in node.samples]}
        for node in nodes
    ]


def _chosen(points: Mapping[int, list[tuple[float, float]]]) -> list[tuple[str, list[tuple[float, float]]]]:
    not_empty = {rank: curve for rank, curve in points.items() if curve}
    if len(not_empty) <= _MOST_CURVES:
        return [(f"rank {rank}", curve) for rank, curve in not_empty.items()]
    means = {rank: fmean(value for _, value in curve) for rank, curve in not_empty.items()}
    low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    return [
        ("mean of all", _mean(not_empty)),
        (f"lowest: rank {low}", not_empty[low]),
        (f"highest: rank {high}", not_empty[high]),
    ]


def _mean(points: Mapping[int, list[tuple[float, float]]]) -> list[tuple[float, float]]:
    """By the minute, as clocks and samples of nodes differ."""
    minutes: dict[int, list[float]] = {}
    for point in points.values():
        for at, value in point:
            minutes.setdefault(int(at // 60), []).append(value)
    return [(60.0 * minute, round(fmean(values), 2)) for minute, values in sorted(minutes.items())]


def _curve(label: str, points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    values = [value for _, value in points]
    indices = thinned(values, _POINTS)
    return {
        "label": label,
        "x": [round(points[index][0]) for index in indices],
        "y": [values[index] for index in indices],
    }


def _share(used: float | None, total: float | None) -> float | None:
    return None if used is None or not total else 100 * used / total
