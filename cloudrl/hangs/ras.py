"""What NCCL's own monitor, RAS, says: which ranks have launched fewer collectives than the others. Pure functions.

Text since NCCL 2.24, JSON since 2.28.7 (NCCL 2.30.7, docs/userguide/source/troubleshooting/ras.rst and
src/ras/client_support.cc). It counts what was launched: ranks that all hang in the same collective, as when a cable is
out, have equal counts, and so have ranks that wait for a rollout or a reward.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cloudrl.hangs.blame import Process
from cloudrl.hangs.stacks import first_own
from cloudrl.protocol.job_phases import Blame

REASON = "lags behind"
_COMMUNICATOR = re.compile(r"^#[0-9]+-[0-9]+ \(([0-9a-f]+)\)", re.MULTILINE)
_OPERATION = re.compile(r"^  Communicator ranks have different (?:(\w+) |collective )operation counts$")
_RANKS = re.compile(r"^  [0-9]+ ranks have (?:launched up to operation ([0-9]+)|not launched any operations)$")
_RANK = re.compile(
    r"^  Rank ([0-9]+)(?: has (?:launched up to operation ([0-9]+)|(not) launched any operations))? -- "
    r"(?:GPU .* managed by process ([0-9]+) on node (\S+)|\[process information not found\])$"
)
_FORGOTTEN_COMMA = re.compile(r'([\d"el])(\s*\n\s*)("[^"\n]*"\s*:)')
"""NCCL 2.28.9 leaves one out between the fields of a missing rank (Ray 2.60, train/v2/.../nccl_ras.py)."""
_MOST_RANKS = 4096
_ENDING = ("finalize_called", "destroy_flag", "abort_flag")


@dataclass(frozen=True)
class Peer:
    """One rank of a communicator; `pid` 0 and `host` "" where RAS does not know its process."""

    rank: int
    pid: int = 0
    host: str = ""


@dataclass(frozen=True)
class Mismatch:
    """A communicator in which ranks have launched different numbers of one operation.

    Attributes:
        communicator: NCCL's hash of it.
        operation: such as `AllReduce`; "collective" where NCCL does not tell them apart (2.24, 2.25).
        counts: from the lowest count: the count, and its ranks. As text, NCCL names the ranks of small groups only.
    """

    communicator: str
    operation: str
    counts: tuple[tuple[int, tuple[Peer, ...]], ...]

    @property
    def lagging(self) -> tuple[Peer, ...]:
        """The ranks that have launched the fewest; empty where NCCL does not name them."""
        return self.counts[0][1]


@dataclass
class Standstill:
    """Since when mismatches have not changed: while a job goes on, counts differ for a moment only."""

    _since: dict[Mismatch, float] = field(default_factory=dict)

    def add(self, mismatches: Iterable[Mismatch], at: float) -> tuple[tuple[Mismatch, float], ...]:
        """What RAS says now; each with the seconds for which it has been so.

        Args:
            mismatches: of all communicators.
            at: seconds of a clock that never runs backwards.
        """
        self._since = {mismatch: self._since.get(mismatch, at) for mismatch in mismatches}
        return tuple((mismatch, at - since) for mismatch, since in self._since.items())


def blame(
    mismatches: Iterable[Mismatch], processes: Sequence[Process], hosts: Collection[str] = ()
) -> tuple[Blame, ...]:
    """The processes of the job that lag; other communicators on the node are not the job's.

    Args:
        mismatches: that have not changed since the look before.
        processes: of the job, on all nodes that answer.
        hosts: addresses of all nodes.
    """
    found = {}
    for mismatch in mismatches:
        for peer in mismatch.lagging:
            process = _process(peer, processes, hosts)
            if process is not None and (process.rank, process.pid) not in found:
                low, high = mismatch.counts[0][0], mismatch.counts[-1][0]
                reason = f"{REASON}: NCCL has launched {low} times {mismatch.operation} on it, {high} times on others"
                found[process.rank, process.pid] = process.blamed(reason, first_own(process.frames))
    return tuple(found.values())


def parse(answer: str) -> tuple[Mismatch, ...]:
    """The mismatches in an answer to `verbose status`, as JSON or as text; () in anything else."""
    if answer.lstrip().startswith("{"):
        return tuple(found for communicator in _communicators(answer) for found in _of_json(communicator))
    return tuple(_of_text(answer))


def _process(peer: Peer, processes: Sequence[Process], hosts: Collection[str]) -> Process | None:
    """Of that process id, on that node; the address that NCCL uses may be another one of the same node.

    Containers of one image number their processes alike, so the id alone does not do where the node is known.
    """
    same = [process for process in processes if process.pid == peer.pid]
    here = [process for process in same if process.host == peer.host]
    is_only = len(same) == 1 and peer.host not in hosts
    return next(iter(here or (same if is_only else ())), None)


def _communicators(answer: str) -> list[Mapping[str, Any]]:
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        try:
            value = json.loads(_FORGOTTEN_COMMA.sub(r"\1,\2\3", answer))
        except (ValueError, RecursionError):
            return []
    rows = value.get("communicators") if isinstance(value, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _of_json(communicator: Mapping[str, Any]) -> Iterable[Mismatch]:
    """A communicator that is about to end has no mismatch: its ranks leave it one after the other."""
    given = communicator.get("ranks")
    ranks = [rank for rank in given if isinstance(rank, dict)][:_MOST_RANKS] if isinstance(given, list) else []
    if any(_is_ending(rank.get("status")) for rank in ranks):
        return
    name = f"{communicator.get('hash')}/{communicator.get('secondary_hash')}"
    counts = [(_peer(rank), _counts(rank.get("collective_counts"))) for rank in ranks]
    for operation in sorted({operation for _, count in counts for operation in count}):
        values = {count.get(operation, 0) for _, count in counts}
        if len(values) > 1:
            groups = [
                (value, tuple(peer for peer, count in counts if count.get(operation, 0) == value))
                for value in sorted(values)
            ]
            yield Mismatch(name, operation, tuple(groups))


def _is_ending(status: Any) -> bool:
    return isinstance(status, dict) and any(status.get(flag) for flag in _ENDING)


def _peer(rank: Mapping[str, Any]) -> Peer:
    number, pid = rank.get("rank"), rank.get("pid")
    return Peer(number if isinstance(number, int) else -1, pid if isinstance(pid, int) else 0, str(rank.get("host")))


def _counts(given: Any) -> dict[str, int]:
    rows = given.items() if isinstance(given, dict) else ()
    return {str(name): count for name, count in rows if isinstance(count, int)}


def _of_text(answer: str) -> Iterable[Mismatch]:
    starts = [*_COMMUNICATOR.finditer(answer)]
    ends = [start.start() for start in starts[1:]] + [len(answer)]
    for start, end in zip(starts, ends):  # noqa: B905  Python 3.9
        operation, count = "", 0
        groups: dict[int, list[Peer]] = {}
        for line in [*answer[start.end() : end].splitlines(), ""]:
            head, many, one = _OPERATION.match(line), _RANKS.match(line), _RANK.match(line)
            if head is not None:
                operation, groups, count = head[1] or "collective", {}, 0
            elif many is not None and operation:
                count = int(many[1] or 0)
                groups.setdefault(count, [])
            elif one is not None and operation:
                count = int(one[2] or 0) if one[2] or one[3] else count
                groups.setdefault(count, []).append(Peer(int(one[1]), int(one[4] or 0), one[5] or ""))
            elif operation:
                if len(groups) > 1:
                    counts = tuple((value, tuple(groups[value])) for value in sorted(groups))
                    yield Mismatch(start[1], operation, counts)
                operation = ""
