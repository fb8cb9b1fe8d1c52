"""Rank 0 reads in the driver's log which value each saved step has of the metric by which a job keeps its best one."""

from __future__ import annotations

import difflib
import re
import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence, Set, Tuple

from cloudrl.durable.progress import Scored
from cloudrl.hangs.driver_log import STEP_LINE
from cloudrl.protocol.durable_jobs import DurableJob, Score
from cloudrl.saves.inventory import Inventory
from cloudrl.saves.keeping import parse_best, score_steps
from cloudrl.saves.lineage import without_abandoned

_CHUNK_BYTES = 4 << 20
_NUMBER = re.compile(r"(?:np\.\w+\()?([+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|inf))\)?$")
_VALIDATION = "val"
"""Names of all metrics of a validation begin so (verl 0.9.1, trainer/ppo/metric_utils.py; `val/loss`)."""


@dataclass
class _Log:
    """What is read of one attempt's log.

    Attributes:
        values: step -> value of the metric, also one that is not finite.
        reached: the last step that was logged.
        names: of the metrics in the steps' lines, as long as the wanted one was not among them.
    """

    offset: int = 0
    values: Dict[int, float] = field(default_factory=dict)
    reached: int = 0
    names: Set[str] = field(default_factory=set)

    def read(self, path: Path, metric: str) -> None:
        """Take the whole lines that are new."""
        with suppress(OSError), path.open("rb") as file:
            while True:
                file.seek(self.offset)
                text = file.read(_CHUNK_BYTES)
                end = text.rfind(b"\n") + 1
                if not end:
                    # a line longer than this is no step's
                    self.offset += len(text) if len(text) == _CHUNK_BYTES else 0
                    if len(text) < _CHUNK_BYTES:
                        return
                    continue
                self.offset += end
                for line in text[:end].splitlines():
                    if b"step:" in line:
                        self._take(line.decode("utf-8", "replace"), metric)

    def _take(self, line: str, metric: str) -> None:
        match = STEP_LINE.search(line)
        if match is None:
            return
        pairs = [part.rpartition(":") for part in line[match.end() :].rstrip().split(" - ")]
        self.reached = max(self.reached, int(match[1]))
        value = next((_number(text) for name, _, text in pairs if name == metric), None)
        if value is not None:
            self.values[int(match[1])] = value
            self.names.clear()
        elif not self.values:
            self.names |= {name for name, _, text in pairs if name and _number(text) is not None}


def _number(text: str) -> Optional[float]:
    match = _NUMBER.match(text)
    return None if match is None else float(match[1])


class Scores:
    """Of all jobs that keep their best step. Thread-safe.

    Args:
        logs: where Ray keeps the logs of drivers; None before it is up.
        tell: takes what is new, to be recorded.
        say: prints a line.
    """

    def __init__(
        self,
        logs: Callable[[], Optional[Path]],
        tell: Callable[[Scored], object],
        *,
        say: Callable[[str], object],
    ) -> None:
        self._logs, self._tell, self._say = logs, tell, say
        self._read: Dict[str, _Log] = {}
        self._told: Dict[str, Tuple[Score, ...]] = {}
        self._warned: Set[str] = set()
        self._lock = threading.Lock()

    def of_all(self, jobs: Sequence[DurableJob], inventory: Inventory) -> List[DurableJob]:
        """The same jobs with the scores of what they have saved; nothing changes while a node is silent.

        Args:
            jobs: those whose steps are copied and cleared.
            inventory: of all nodes.
        """
        with self._lock:
            return [self._scored(job, inventory) if job.keep_best else job for job in jobs]

    def _scored(self, job: DurableJob, inventory: Inventory) -> DurableJob:
        known = self._told.get(job.submission_id, job.scores)
        logs = self._logs()
        if logs is None or inventory.silent:
            return replace(job, scores=known)
        metric, _ = parse_best(job.keep_best)
        log = self._read.setdefault(job.submission_id, _Log())
        log.read(logs / f"job-driver-{job.submission_id}.log", metric)
        steps = {one.step for one in without_abandoned(inventory, job).checkpoints if one.run == job.run}
        scores = score_steps(known, steps, log.values, log.reached)
        if scores != job.scores:
            self._tell(Scored(job.submission_id, scores))
        self._told[job.submission_id] = scores
        self._warn(job, metric, log, max(steps, default=0))
        return replace(job, scores=scores)

    def _warn(self, job: DurableJob, metric: str, log: _Log, saved: int) -> None:
        """Once, when a saved step was logged and no step has the metric; a validation may come later."""
        is_early = not 0 < saved <= log.reached or not log.names
        is_validated = any(name.startswith(_VALIDATION) for name in log.names)
        may_come = metric.startswith(_VALIDATION) and not is_validated
        if log.values or job.scores or is_early or may_come or job.job_id in self._warned:
            return
        self._warned.add(job.job_id)
        alike = difflib.get_close_matches(metric, sorted(log.names), 3, 0.4)
        there = f"; verl logs {', '.join(alike)}" if alike else ""
        self._say(f"warning: job {job.job_id}: --keep-best: no step has logged {metric}{there}")
