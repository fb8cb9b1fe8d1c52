"""What went wrong by the logs: the driver's end, and what processes said of themselves where the state is lost."""

import re
from dataclasses import replace

from cloudrl.jobs.causes.evidence import Evidence, LogTail
from cloudrl.jobs.causes.signatures import Signature, recognise
from cloudrl.jobs.causes.suspects import END_LINES, MOST_LINES, Suspect, line_of, raised
from cloudrl.jobs.causes.times import stamped_ms
from cloudrl.jobs.causes.tracebacks import error_of, innermost, last_failure
from cloudrl.verl.metrics import plain, without_ansi

DRIVER = "driver"
_PRINTED_BY = re.compile(r"\s*\((?P<name>[\w.:<>-]+) pid=(?P<pid>\d{1,10})(?:, ip=(?P<ip>[\w.:]+))?\)")
"""How Ray marks a line of a worker in the driver's log."""
_SETTING = re.compile(r"\s*\{?'\w+': |Running entrypoint for job ")
"""verl prints its whole configuration, and Ray the command: names of settings are no failures."""


def suspect_of_driver(evidence: Evidence) -> Suspect | None:
    """What the driver ended with: an error of its own, or one that it got from a task."""
    for log in filter(lambda each: each.is_driver, evidence.logs):
        own = [
            line for line in log.lines if not _PRINTED_BY.match(text := without_ansi(line)) and not _SETTING.match(text)
        ]
        text = "\n".join(last_failure(own) or own[-END_LINES:])
        if (found := _of_driver(text, evidence, log.rank)) is not None:
            return found
    job = evidence.state.job
    return _of_driver(str(job.get("message") or ""), evidence, evidence.rank_of(job.get("driver_node_id")))


def suspects_of_logs(evidence: Evidence) -> list[Suspect]:
    """The first failure in the log of each process."""
    logs = [log for log in evidence.logs if not log.is_driver]
    return [found for log in logs if (found := _first_in(evidence, log)) is not None]


def seen_by_driver(evidence: Evidence) -> Suspect | None:
    """The first failure in the driver's log that may be a cause: Ray repeats there what all processes print."""
    found = (_first_in(evidence, log) for log in evidence.logs if log.is_driver)
    return next((each for each in found if each is not None and each.follows is None), None)


def _of_driver(text: str, evidence: Evidence, rank: int | None) -> Suspect | None:
    trace = innermost(text)
    signature = recognise("\n".join(trace.lines))
    if trace.error is None and signature is None:
        return None
    if trace.pid or trace.actor_id:
        return raised(evidence, trace, {}, "task", at_ms=evidence.ended_ms)
    error = trace.error or line_of(signature, trace.lines)
    return Suspect(error, trace.lines[-MOST_LINES:], evidence.ended_ms, rank, DRIVER, signature=signature)


def _first_in(evidence: Evidence, log: LogTail) -> Suspect | None:
    """The first failure that may be a cause; else the first that follows from another one's."""
    found = [each for at in range(len(log.lines)) if (each := _at(evidence, log, at)) is not None]
    return next((each for each in found if each.follows is None), found[0] if found else None)


def _at(evidence: Evidence, log: LogTail, at: int) -> Suspect | None:
    line = plain(log.lines[at])
    if _SETTING.match(line):
        return None
    error, signature = error_of(line), recognise(line)
    if error is None and signature is None:
        return None
    if error is None and (end := _end_of_frame(log, at)) is not None:
        return _with_frame(_at(evidence, log, end), log, at, end, signature)
    block = last_failure(log.lines[max(0, at - MOST_LINES) : at + 1]) if error else log.lines[max(0, at - 5) : at + 5]
    lines = tuple(map(plain, block))
    rank, process = _place(evidence, log, log.lines[at])
    return Suspect(
        error=error or line.strip(),
        lines=lines[-MOST_LINES:],
        at_ms=stamped_ms(log.lines, at, log.utc_offset_s) or log.modified_ms,
        rank=rank,
        process=process,
        crashed=error is None,
        signature=signature or recognise("\n".join(lines)),
    )


def _end_of_frame(log: LogTail, at: int) -> int | None:
    """Where the error stands of the traceback that a line is a frame of; None for a line that is none."""
    if not plain(log.lines[at]).lstrip().startswith('File "'):
        return None
    by, below = _printed_by(log.lines[at]), range(at + 1, min(len(log.lines), at + MOST_LINES))
    return next((each for each in below if error_of(log.lines[each]) and _printed_by(log.lines[each]) == by), None)


def _with_frame(found: Suspect | None, log: LogTail, at: int, end: int, signature: Signature | None) -> Suspect | None:
    """An error with the frame that a signature knows; the log may have lost what stood above it."""
    if found is None or found.signature is not None:
        return found
    lines = tuple(plain(line) for line in log.lines[at : end + 1] if _printed_by(line) == _printed_by(log.lines[at]))
    return replace(found, lines=lines if len(lines) > len(found.lines) else found.lines, signature=signature)


def _printed_by(line: str) -> str:
    found = _PRINTED_BY.match(without_ansi(line))
    return found["pid"] if found else ""


def _place(evidence: Evidence, log: LogTail, line: str) -> tuple[int | None, str]:
    """Who has written a line: in the driver's log it says so itself."""
    if log.pid is not None:
        return log.rank, f"worker (pid {log.pid})"
    by = _PRINTED_BY.match(without_ansi(line)) if log.is_driver else None
    if by is None:
        return log.rank, DRIVER if log.is_driver else log.name.partition(".")[0]
    return evidence.rank_of_process(by["ip"], int(by["pid"])), f"{by['name']} (pid {by['pid']})"
