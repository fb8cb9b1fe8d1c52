"""How busy a node was, as a row of numbers: so it is held in the agent's memory, sent to clients and kept on disk.

A row is the fields of a `Usage` in their order, then those of each of its GPUs; None where a node does not say.
"""

import math
from typing import Any, Dict, Iterator, List, Optional, Sequence

from cloudrl.protocol.report import GpuUsage, Usage

OF_THE_HOST = (
    "sampled_at", "cpu_percent", "memory_used_bytes", "memory_total_bytes", "disk_used_bytes", "disk_total_bytes",
    "received_bytes_per_s", "sent_bytes_per_s", "shm_used_bytes", "shm_total_bytes", "store_used_bytes",
    "store_total_bytes",
)  # fmt: skip
_OF_AN_OLDER_HOST = OF_THE_HOST[:8]
"""What rows of cloudrl 0.1 have: files that were kept, and agents that run on."""
OF_A_GPU = ("index", "utilization_percent", "memory_used_mib", "memory_total_mib", "power_w")
_WHOLE = ("index", "memory_used_mib", "memory_total_mib", *(name for name in OF_THE_HOST if name.endswith("_bytes")))
_SMALL = 1000
"""Greater means have no decimals."""
FILE = "usage.jsonl"
"""Beside the agent's logs on rank 0, and kept with them: {"at", "cost", "per_hour", "nodes": {rank: row}} a line."""

Row = Sequence[Optional[float]]


def to_row(usage: Usage) -> List[Optional[float]]:
    """The row of a sample."""
    host: List[Optional[float]] = [getattr(usage, name) for name in OF_THE_HOST]
    return host + [getattr(gpu, name) for gpu in usage.gpus for name in OF_A_GPU]


def from_row(row: Row) -> Usage:
    """The sample of a row, without the names of GPUs.

    Raises:
        ValueError, TypeError: it is not such a row.
    """
    host = next((names for names in (OF_THE_HOST, _OF_AN_OLDER_HOST) if _begins_with(row, names)), None)
    if host is None or row[0] is None or not all(value is None or isinstance(value, (int, float)) for value in row):
        raise ValueError("this is not a row of a node's use")
    starts = range(len(host), len(row), len(OF_A_GPU))
    gpus = tuple(GpuUsage(**_fields(OF_A_GPU, row, start)) for start in starts if row[start] is not None)
    return Usage(**_fields(host, row, 0), gpus=gpus)


def _begins_with(row: Row, host: Sequence[str]) -> bool:
    """Whether a row has these numbers of its host, by its length: behind them are those of whole GPUs."""
    return len(row) >= len(host) and (len(row) - len(host)) % len(OF_A_GPU) == 0


def mean_row(rows: Sequence[Row]) -> List[Optional[float]]:
    """The means of each number over several rows, at the time of the last one."""
    width = max(map(len, rows))
    return [rows[-1][0], *(_mean(_column(rows, at)) for at in range(1, width))]


def _column(rows: Sequence[Row], at: int) -> Iterator[float]:
    for row in rows:
        value = row[at] if at < len(row) else None
        if value is not None and math.isfinite(value):
            yield value


def _mean(values: Iterator[float]) -> Optional[float]:
    samples = list(values)
    mean = sum(samples) / len(samples) if samples else None
    return mean if mean is None else round(mean, 1) if mean < _SMALL else round(mean)


def _fields(names: Sequence[str], row: Row, start: int) -> Dict[str, Any]:
    values = ((name, row[start + place]) for place, name in enumerate(names))
    return {name: value if value is None or name not in _WHOLE else round(value) for name, value in values}
