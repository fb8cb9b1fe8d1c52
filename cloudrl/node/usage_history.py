"""How busy all nodes were, on rank 0: the last hour by seconds, the last day by the minute, and a file of it.

Both are bounded, whatever the cluster: a node with 8 GPUs takes about 300 bytes a sample, 0.6 MB in all.
"""

import json
import math
import threading
import time
from array import array
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Deque, Dict, Iterable, List, NamedTuple, Optional, Tuple

from cloudrl.node.background import repeat
from cloudrl.node.usage import EVERY_S
from cloudrl.private_files import open_file
from cloudrl.protocol.report import NodeReport
from cloudrl.protocol.usage_rows import Row, mean_row, to_row

HOUR, DAY = "hour", "day"
_HOUR_SAMPLES, _DAY_SAMPLES = 720, 1440
_MINUTE_S = 60.0
_PART_OF_AGE = 10
"""While a cluster is young, a line of the file covers less than a minute: a tenth of its age."""
_MOST_NUMBERS = 100_000
"""In one answer, about 700 kB; where there are more, rows are means of several samples."""
_FILE_BYTES = 64 << 20


class _Sample(NamedTuple):
    at: float
    values: "array[float]"  # of four bytes each


class _Node:
    """What is held of one node."""

    def __init__(self) -> None:
        self.hour: Deque[_Sample] = deque(maxlen=_HOUR_SAMPLES)
        self.day: Deque[_Sample] = deque(maxlen=_DAY_SAMPLES)
        self.open: List[Row] = []


class UsageHistory:
    """Looks at the nodes' own reports again and again; sends no request to them.

    Args:
        nodes: the reports of all nodes.
        file: to which lines are added, see `cloudrl.protocol.usage_rows.FILE`.
        money: US dollars that the cluster has cost, and costs in an hour; None if unknown.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        nodes: Callable[[], Iterable[NodeReport]],
        file: Path,
        money: Callable[[], Tuple[Optional[float], Optional[float]]],
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._reports, self._file, self._money, self._now = nodes, file, money, now
        self._began_at = self._written_at = now()
        self._nodes: Dict[int, _Node] = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        """Look until the process ends."""
        repeat(self.look, EVERY_S)

    def look(self) -> None:
        """Take what is new; a node that is silent adds nothing."""
        with self._lock:
            for report in self._reports():
                node = self._nodes.setdefault(report.rank, _Node())
                usage = report.usage
                if usage is not None and (not node.hour or node.hour[-1].at < usage.sampled_at):
                    row = to_row(usage)
                    node.hour.append(_packed(row))
                    node.open.append(row)
        now = self._now()
        if now - self._written_at >= min(_MINUTE_S, (now - self._began_at) / _PART_OF_AGE):
            self._written_at = now
            self._end_minute(now)

    def answer(self, span: str) -> Dict[str, Any]:
        """{"nodes": {rank: [row, ...]}} of the last `HOUR` or `DAY`, oldest first."""
        with self._lock:
            held = {rank: list(node.day if span == DAY else node.hour) for rank, node in self._nodes.items()}
        total = sum(1 + len(sample.values) for samples in held.values() for sample in samples)
        count = math.ceil(total / _MOST_NUMBERS) or 1
        return {"nodes": {str(rank): _thinned(samples, count) for rank, samples in held.items()}}

    def _end_minute(self, now: float) -> None:
        rows: Dict[str, List[Optional[float]]] = {}
        with self._lock:
            for rank, node in self._nodes.items():
                if node.open:
                    rows[str(rank)] = row = mean_row(node.open)
                    node.day.append(_packed(row))
                    node.open = []
        cost, per_hour = self._money()
        line = {"at": round(now, 3), "cost": cost, "per_hour": per_hour, "nodes": rows}
        with suppress(OSError):  # whoever needs the disk says that it is full
            is_long = self._file.exists() and self._file.stat().st_size > _FILE_BYTES
            with open(self._file, "w" if is_long else "a", encoding="utf-8", opener=open_file) as file:
                file.write(json.dumps(line, separators=(",", ":")) + "\n")


def _packed(row: Row) -> _Sample:
    return _Sample(float(row[0] or 0.0), array("f", [math.nan if value is None else value for value in row[1:]]))


def _thinned(samples: List[_Sample], count: int) -> List[List[Optional[float]]]:
    groups = (samples[at : at + count] for at in range(0, len(samples), count))
    return [mean_row([(sample.at, *sample.values) for sample in group]) for group in groups]
