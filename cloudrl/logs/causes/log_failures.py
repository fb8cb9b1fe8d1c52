"""What failed in one process, by the lines that it has printed into a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cloudrl.logs.causes.budget import Budget
from cloudrl.logs.causes.evidence import Evidence, LogTail
from cloudrl.logs.causes.printed import Stream
from cloudrl.logs.causes.signatures import recognise
from cloudrl.logs.causes.suspect import MOST_LINES, SURVIVED_MS, Suspect, known, raised
from cloudrl.logs.causes.tracebacks import Block, blocks, explained, innermost

DRIVER = "driver"
_AROUND = 5
_LOST_RAYLET = "Raylet is terminated. Termination is unexpected."
"""Of a node that was lost, above a list of possible reasons (Ray 2.60, _private/process_watcher.py)."""


def failures(evidence: Evidence, log: LogTail, stream: Stream, budget: Budget) -> Iterator[tuple[int, Suspect]]:
    """The failures of a process, and the last line of each in the stream, in their order.

    Exceptions are known by their form, other failures by a signature or, as `only_logged`, by the level of a logger.
    """
    texts = stream.texts
    tracebacks = {block.start: block for block in blocks(texts)}
    until = 0
    for at in budget.take(range(len(texts))):
        if (block := tracebacks.get(at)) is not None:
            until = block.end
            yield block.end - 1, _raised(evidence, log, stream, texts, block)
        elif at >= until and (logged := _said(evidence, log, stream, at)) is not None:
            yield at, logged


def chosen(suspects: Sequence[Suspect]) -> Suspect | None:
    """What a process failed of, among its failures in their order: the first that may be the cause of all.

    A failure that the process survived by more than a minute does not count. If no other is left, the first that
    follows from another process's failure, and else what was only logged.
    """
    vague = next((suspect for suspect in suspects if suspect.is_vague), None)
    follower = next((suspect for suspect in suspects if suspect.follows is not None), None)
    leads = [suspect for suspect in suspects if suspect.is_lead]
    last_ms = (leads[-1].at_ms if leads else None) or 0.0
    recent = [lead for lead in leads if (lead.at_ms or last_ms) >= last_ms - SURVIVED_MS]
    return next(iter(recent), vague or follower or next(iter(suspects), None))


def _raised(evidence: Evidence, log: LogTail, stream: Stream, texts: Sequence[str], block: Block) -> Suspect:
    own = [text for text in texts[block.start : block.end] if text.strip()]
    trace, at_ms = innermost("\n".join(own)), _at_ms(log, stream, block.error_at)
    if trace.pid or trace.actor_id:  # it came from another process, which says so
        return raised(evidence, trace, {}, "task", at_ms=at_ms)
    error, lines = explained(texts, block), trace.lines[-MOST_LINES:]
    return _placed(Suspect(error, lines, at_ms, signature=known(trace.lines, error)), evidence, log, stream)


def _said(evidence: Evidence, log: LogTail, stream: Stream, at: int) -> Suspect | None:
    """What a line outside a traceback says."""
    line = stream.lines[at]
    if not line.text.strip() or line.is_quiet:
        return None
    is_raylet = line.text.startswith(_LOST_RAYLET)
    error = "the node has died: its raylet ended unexpectedly" if is_raylet else line.text.strip()
    signature = recognise(error)
    if signature is None and not line.is_error:
        return None
    around = tuple(line.text for line in stream.lines[max(0, at - _AROUND) : at + _AROUND])
    suspect = Suspect(
        error=error,
        lines=around,
        at_ms=_at_ms(log, stream, at),
        crashed=signature is not None or line.is_fatal,
        signature=signature,
        only_logged=signature is None and not line.is_fatal,
    )
    return _placed(suspect, evidence, log, stream)


def _placed(suspect: Suspect, evidence: Evidence, log: LogTail, stream: Stream) -> Suspect:
    """With its process: in the driver's log the lines of others say whose they are."""
    by = stream.first
    if log.pid is not None:
        return replace(suspect, rank=log.rank, process=f"worker (pid {log.pid})")
    if not log.is_driver or stream.is_own:
        return replace(suspect, rank=log.rank, process=DRIVER if log.is_driver else log.name.partition(".")[0])
    rank = evidence.rank_of_process(by.ip, by.pid)
    return replace(suspect, rank=rank, process=f"{by.name or 'worker'} (pid {by.pid})" if by.pid else by.name)


def _at_ms(log: LogTail, stream: Stream, at: int) -> float | None:
    return log.times_ms[stream.places[at]] or log.modified_ms
