"""A process that died, in its own last words where it had any."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cloudrl.logs.causes.budget import Budget
from cloudrl.logs.causes.evidence import Evidence, LogTail
from cloudrl.logs.causes.guesses import facts_of
from cloudrl.logs.causes.log_failures import chosen, failures
from cloudrl.logs.causes.printed import Stream
from cloudrl.logs.causes.signatures import recognise
from cloudrl.logs.causes.suspect import MOST_LINES, Suspect
from cloudrl.logs.causes.tracebacks import innermost

_END_LINES, _MOST_BELOW = 60, 5
"""Its last lines, in which a known failure is its end; and how many may be below one that no signature knows."""
_LONGEST = 20_000
_STACK = re.compile(
    r"\s|\*\*\*|PC: |@ |#\d|Fatal Python error|Current thread|Thread 0x|Extension modules|Aborted|Killed"
    r"|frame #\d|\S{1,400}\(\S{0,400}\) \[0x"
)
"""Lines of a process that is about to end, after its words (the handlers of absl, CPython, torch and Ray)."""


@dataclass(frozen=True)
class Dead:
    """A process that died.

    Attributes:
        process: how it is called.
        detail: what is said of its death, by Ray or by us.
        streams: what it has printed.
        rank: of its node.
        actor_id: of the actor in it.
        at_ms: when it died.
        is_sudden: whether it had no time to say why.
    """

    process: str
    detail: str
    streams: Sequence[tuple[LogTail, Stream]]
    rank: int | None
    actor_id: str | None = None
    at_ms: float | None = None
    is_sudden: bool = False


def death(evidence: Evidence, dead: Dead, budget: Budget) -> Suspect:
    """The death of a process, by its own last words where it had any that say more than Ray does."""
    reason = recognise(dead.detail)
    is_explained = dead.is_sudden or (reason is not None and reason.follows is None)  # as by Ray's monitor of memory
    words = None if is_explained else _words(evidence, dead.streams, budget)
    end = tuple(line.text for _, stream in dead.streams for line in stream.lines[-_END_LINES:] if line.text.strip())
    trace = innermost(dead.detail)  # it has one where the actor's own start raised
    first = next(filter(str.strip, facts_of(dead.detail[:_LONGEST]).splitlines()), "no reason given").strip()
    shown = words.lines if words is not None and words.signature is None else end
    return Suspect(
        error=words.error if words is not None else trace.error or first,
        lines=(*shown, *trace.lines)[-MOST_LINES:],
        at_ms=dead.at_ms,
        rank=dead.rank,
        process=dead.process,
        actor_id=dead.actor_id,
        crashed=True,
        signature=words.signature if words is not None else reason,
    )


def printed_by(evidence: Evidence, worker_id: str, pid: int | None, rank: int | None) -> list[tuple[LogTail, Stream]]:
    """What a worker has printed: into its own logs, else into that of the driver."""
    logs = evidence.logs_of(worker_id, pid, rank)
    if any(log.lines for log in logs):
        return [(log, stream) for log in logs for stream in log.streams]
    drivers = [log for log in evidence.logs if log.is_driver and pid is not None]
    return [(log, stream) for log in drivers for stream in log.streams if stream.first.pid == pid]


def _words(evidence: Evidence, streams: Sequence[tuple[LogTail, Stream]], budget: Budget) -> Suspect | None:
    """What the process failed of by its own last lines: of a failure that no signature knows, only the very last."""
    suspects = list[Suspect]()
    for log, stream in budget.take(streams):
        below = _lines_below(stream)
        for at, suspect in failures(evidence, log, stream, budget):
            most = _MOST_BELOW if suspect.signature is None else _END_LINES
            if below[at] <= most and not suspect.only_logged:
                suspects.append(suspect)
    return chosen(suspects)


def _lines_below(stream: Stream) -> list[int]:
    """Below each line, the number of lines that do not belong to a stack."""
    counts, count = list[int](), 0
    for line in reversed(stream.lines):
        counts.append(count)
        count += bool(line.text.strip()) and not _STACK.match(line.text)
    return counts[::-1]
