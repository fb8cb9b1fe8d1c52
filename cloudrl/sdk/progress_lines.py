"""What a verb reports while it works, as lines for a person: for a terminal, a log file, a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from cloudrl.jobs import Ended, JobHandle, Progress, Starting
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.progress import Fetching, Notice, Rate, Transfer
from cloudrl.protocol.ranks import ranks_text
from cloudrl.protocol.report import NodeReport
from cloudrl.providers.model import Status
from cloudrl.sdk.callbacks import Update, Waiting
from cloudrl.units import dollars_text, duration_text, size_text

_WAITING_EVERY_S, _TRANSFER_EVERY_S = 30.0, 15.0
_EACH_CHANGE = 4
"""Of so many nodes each has its line."""


class ProgressLines:
    """An `on_progress` that writes a line whenever there is something new, and every half a minute of waiting.

        cluster.up(on_progress=cloudrl.ProgressLines())

    Args:
        write: takes a line; without it lines go to standard error.
        clock: seconds that never run backwards.
    """

    def __init__(
        self, write: Callable[[str], object] | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write, self._clock = write or _to_stderr, clock
        self._cluster, self._starting = ClusterLines(clock), StartLines(clock)
        self._transfers: dict[tuple[str, int], TransferPace] = {}

    def __call__(self, update: Update) -> None:
        """Write what an update has that is new."""
        for line in self._lines(update):
            self._write(line)

    def _lines(self, update: Update) -> Iterator[str]:
        if isinstance(update, Status):
            yield from self._cluster.add(update)
        elif isinstance(update, Notice):
            yield update.text
            yield from (f"  -> {hint}" for hint in update.hint.splitlines())
        elif isinstance(update, Transfer):
            key = update.what, update.total_bytes
            pace = self._transfers.setdefault(key, TransferPace(_TRANSFER_EVERY_S, self._clock))
            if text := pace.describe(update):
                yield f"{update.what}: {text}"
        elif isinstance(update, JobHandle):
            yield f"submitted {update.url}"
        elif isinstance(update, Waiting):
            yield from self._starting.add(update)
        elif isinstance(update, (Progress, Ended)):
            yield f"{update}"


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201  what the caller has asked for


class StartLines:
    """A line for each stage of the start of a job, and every half a minute for how long it is in it.

    Args:
        clock: seconds that never run backwards.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._line_at = clock, clock()
        self._stage: Starting | None = None

    def add(self, waiting: Waiting) -> list[str]:
        """What is worth a line of the next look at it."""
        is_new = waiting.stage != self._stage
        if not is_new and self._clock() - self._line_at < _WAITING_EVERY_S:
            return []
        self._stage, self._line_at = waiting.stage, self._clock()
        return [f"before the first step: {waiting.stage}" if is_new else f"{waiting}"]


class ClusterLines:
    """Lines about a cluster that comes up: a change of a node's phase, and every half a minute what is waited for.

    Args:
        clock: seconds that never run backwards.

    Attributes:
        phase_s: seconds that the cluster is in its phase.
    """

    phase_s: float = 0.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._phase_at, self._line_at = clock, clock(), clock()
        self._phase: Phase | None = None
        self._last: dict[int, str] = {}
        self._waits, self._attempts = "", 0

    def add(self, status: Status) -> list[str]:
        """The next look at it; the lines that it is worth."""
        if status.phase is not self._phase:
            self._phase, self._phase_at = status.phase, self._clock()
        self.phase_s = self._clock() - self._phase_at
        lines = list(self._changes(status))
        if not lines and self._clock() - self._line_at >= _WAITING_EVERY_S and not status.is_over:
            lines = [waiting_line(status, self.phase_s)]
        if lines:
            self._line_at = self._clock()
        return lines

    def _changes(self, status: Status) -> Iterator[str]:
        """What is new since the last look."""
        for attempt in status.previous_attempts[self._attempts :]:
            yield describe_attempt(attempt)
        self._attempts = len(status.previous_attempts)
        if status.reason and not status.nodes and headline(status) != self._waits:
            self._waits = headline(status)
            yield self._waits
        yield from changes([node for node in status.nodes if self._last.get(node.rank) != node.phase.value])
        self._last |= {node.rank: node.phase.value for node in status.nodes}


class TransferPace:
    """How far one transfer is, said from time to time, with its rate over the last ten seconds.

    Args:
        every_s: how long to be silent in between.
        clock: seconds that never run backwards.
    """

    def __init__(self, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s, self._clock = every_s, clock
        self._rate = Rate(clock())
        self._is_over = False

    def describe(self, update: Transfer) -> str:
        """For example `3.1 GB of 12.4 GB, 250 MB/s, 37 s left, $41.20 so far`.

        "" while it is to be silent, and after the end.
        """
        done_bytes, total_bytes = update.done_bytes, update.total_bytes
        now, is_over = self._clock(), done_bytes >= total_bytes
        if self._is_over or (not is_over and now - self._rate.last_at < self._every_s):
            return ""
        self._is_over = is_over
        rate = self._rate.add(now, done_bytes)
        if is_over:
            amounts = size_text(total_bytes) + (f", {size_text(round(rate))}/s" if rate else "")
        else:
            amounts = str(Fetching("", done_bytes, total_bytes, rate))
        return amounts if update.dollars is None else f"{amounts}, {dollars_text(update.dollars)} so far"


def changes(nodes: Sequence[NodeReport]) -> list[str]:
    """A line for each node, of those that have gone to another phase; of many one for each phase."""
    by_phase: dict[str, list[NodeReport]] = {}
    for node in nodes:
        by_phase.setdefault(node.phase.value, []).append(node)
    lines = []
    for phase, group in by_phase.items():
        if len(group) > _EACH_CHANGE:
            lines.append(f"{ranks_text(node.rank for node in group)}: {phase}")
        else:
            lines += [f"rank {node.rank} ({node.ip}): {phase}" for node in group]
    return lines


def headline(status: Status) -> str:
    """Name and phase of a cluster, and while no node is known why."""
    text = f"{status.name} on {status.provider}: {status.phase}"
    return f"{text}; {status.reason}" if status.reason and not status.nodes and not status.is_over else text


def waiting_line(status: Status, phase_s: float) -> str:
    """What is waited for, in which phase, and for how long: `lab: fetch for 40 s; gsm8k: 7473 rows`.

    Args:
        status: of a cluster that comes up.
        phase_s: seconds that it is in its phase.
    """
    behind = [node for node in status.nodes if node.phase != Phase.READY and node.failure is None]
    doing = [status.reason] if not status.nodes else [fetching_text(behind), *dict.fromkeys(n.detail for n in behind)]
    return "; ".join(filter(None, [f"{status.name}: {status.phase} for {duration_text(phase_s)}", *doing]))


def fetching_text(nodes: Sequence[NodeReport]) -> str:
    """What nodes fetch and how far the slowest of them is, such as `Qwen/Qwen3-8B: 3.1 GB of 16.4 GB, 250 MB/s`."""
    by_name: dict[str, list[Fetching]] = {}
    for node in nodes:
        for name, progress in node.fetching.items():
            by_name.setdefault(name, []).append(progress)
    slowest = {name: min(each, key=lambda fetching: fetching.done_bytes or 0) for name, each in by_name.items()}
    texts = {name: str(progress).removeprefix(f"{name}: ") for name, progress in slowest.items()}  # a line may begin so
    return "; ".join(f"{name}: {text}" if text else name for name, text in texts.items())


def describe_attempt(attempt: Mapping[str, Any]) -> str:
    """When an attempt ran that was started again, and why it ended."""
    began = datetime.fromtimestamp(attempt["submitted_at"]).astimezone()
    ended = attempt["ended_at"]
    until = f" to {datetime.fromtimestamp(ended).astimezone():%H:%M:%S}" if ended is not None else ""
    when = f"{began:%Y-%m-%d %H:%M:%S}{until}"
    first, last = attempt["attempt"], attempt["last_attempt"]
    if last > first:
        return f"attempts {first} to {last} ({when}) did not start: {attempt['reason']}"
    return f"attempt {first} ({when}) ended and was started again: {attempt['reason']}"
