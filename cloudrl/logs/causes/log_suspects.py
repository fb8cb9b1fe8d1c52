"""What went wrong by the logs: the driver's end, and what processes said of themselves where the state is lost."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import dropwhile, takewhile

from cloudrl.logs.causes.budget import Budget
from cloudrl.logs.causes.command_end import driver_logs, ended_by, exit_code, program_ended
from cloudrl.logs.causes.evidence import Evidence, LogTail
from cloudrl.logs.causes.last_words import Dead, death, printed_by
from cloudrl.logs.causes.log_failures import DRIVER, chosen, failures
from cloudrl.logs.causes.printed import Stream
from cloudrl.logs.causes.signatures import recognise
from cloudrl.logs.causes.suspect import MOST_LINES, Suspect, known, line_of, process_name, raised
from cloudrl.logs.causes.tracebacks import innermost

_END_LINES = 60
_DEATH = re.compile(r"Worker exit type: \w{1,40} Worker exit detail: ")
_DEAD_PID = re.compile(r"(?:Worker PID|\tpid): (?P<pid>\d{1,10})\b")
_PID_ABOVE = 8
"""Lines in which Ray names the process above what it died of (Ray 2.60, exceptions.py: ActorDiedError)."""
_HYDRAS_END = "Set the environment variable HYDRA_FULL_ERROR=1"
_HYDRAS_START = "Error executing job with overrides"
"""Around an error that Hydra prints without its traceback (hydra 1.3, _internal/utils.py: run_and_report)."""
_FATAL_SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)


def suspect_of_driver(evidence: Evidence, budget: Budget) -> Suspect | None:
    """What the driver ended with: a signal, an error of its own, or one that it got from a task."""
    if (killed := _killed_driver(evidence, budget)) is not None:
        return killed
    for log in budget.take(driver_logs(evidence)):
        if (end := _end_of(evidence, log, budget)) is not None:
            return replace(end, at_ms=evidence.ended_ms)
    return None


def suspects_of_logs(evidence: Evidence, budget: Budget) -> list[Suspect]:
    """What each process of the workers' logs has failed of."""
    return [suspect for log in evidence.logs if not log.is_driver for _, suspect in _by_process(evidence, log, budget)]


def suspects_seen_by_driver(evidence: Evidence, budget: Budget) -> list[Suspect]:
    """The same by the driver's log, where Ray repeats what all processes print; in the order of its lines."""
    of_drivers = [placed for log in driver_logs(evidence) for placed in _by_process(evidence, log, budget)]
    return [suspect for _, suspect in sorted(of_drivers, key=lambda placed: placed[0])]


def _by_process(evidence: Evidence, log: LogTail, budget: Budget) -> Iterator[tuple[int, Suspect]]:
    """What each process has failed of, and the line of the log at which it did."""
    for stream in budget.take(log.streams):
        retold = list(_retold(evidence, log, stream, budget))
        first = chosen([failure for _, failure in retold])
        if first is not None:
            yield next(at for at, failure in retold if failure is first), first


def _retold(evidence: Evidence, log: LogTail, stream: Stream, budget: Budget) -> Iterator[tuple[int, Suspect]]:
    """The failures of a process and their lines in the log; where it reports a death, the words of who died."""
    for at, suspect in failures(evidence, log, stream, budget):
        yield stream.places[at], _in_own_words(evidence, stream, at, suspect, budget)


def _in_own_words(evidence: Evidence, stream: Stream, at: int, report: Suspect, budget: Budget) -> Suspect:
    """Where Ray reports that a process has died, what that process said at its end."""
    text = stream.lines[at].text
    if _DEATH.search(text) is None:
        return report
    above = [line.text for line in stream.lines[max(0, at - _PID_ABOVE) : at]]
    named = next((match for line in [text, *reversed(above)] if (match := _DEAD_PID.search(line))), None)
    pid = int(named["pid"]) if named is not None else None
    rank = evidence.rank_of_process(None, pid)
    streams = printed_by(evidence, "", pid, rank)
    name = next((stream.first.name for _, stream in streams if stream.first.name), "worker")
    dead = Dead(process_name(None, name, pid), text, streams, rank, at_ms=report.at_ms)
    suspect = death(evidence, dead, budget)
    return replace(suspect, lines=(*suspect.lines, text)[-MOST_LINES:])


def _end_of(evidence: Evidence, log: LogTail, budget: Budget) -> Suspect | None:
    """The last exception of the driver; without one what a signature knows of its last lines."""
    own = [stream for stream in log.streams if stream.is_own]
    suspects = [
        (stream.places[at], failure)
        for stream in own
        for at, failure in failures(evidence, log, stream, budget)
        if not failure.crashed and not failure.only_logged
    ]
    if suspects:
        return max(suspects, key=lambda placed: placed[0])[1]
    lines = sorted((place, text) for stream in own for place, text in zip(stream.places, stream.texts, strict=True))
    texts = [text for _, text in lines[-_END_LINES:]]
    return _of_hydra(texts, evidence, log.rank) or _of_text("\n".join(texts), evidence, log.rank)


def _of_hydra(texts: Sequence[str], evidence: Evidence, rank: int | None) -> Suspect | None:
    """An error of the configuration, which Hydra prints without a traceback: the lines above its advice."""
    end = next((at for at, text in enumerate(texts) if text.startswith(_HYDRAS_END)), None)
    above = reversed(texts[:end]) if end is not None else iter(())
    told = list(takewhile(str.strip, dropwhile(lambda text: not text.strip(), above)))[::-1]
    words = [text for text in told if not text.startswith(_HYDRAS_START)]
    if not words:
        return None
    signature = recognise("\n".join(words))
    error = line_of(signature, words) if signature is not None else words[0].strip()
    return Suspect(error, tuple(words[-MOST_LINES:]), evidence.ended_ms, rank, DRIVER, signature=signature)


def _of_text(text: str, evidence: Evidence, rank: int | None) -> Suspect | None:
    trace = innermost(text)
    signature = known(trace.lines, trace.error)
    if trace.error is None and signature is None:
        return None
    if trace.pid or trace.actor_id:
        return raised(evidence, trace, {}, "task", at_ms=evidence.ended_ms)
    error = trace.error or line_of(signature, trace.lines)
    return Suspect(error, trace.lines[-MOST_LINES:], evidence.ended_ms, rank, DRIVER, signature=signature)


def _killed_driver(evidence: Evidence, budget: Budget) -> Suspect | None:
    """A driver that a signal has ended: whatever its log has of exceptions, it has survived them."""
    code = exit_code(evidence)
    number, program = ended_by(code), program_ended(evidence)
    if number is None or number not in _FATAL_SIGNALS:
        return None
    detail = f"the job's driver was killed by signal {number.value}, {number.name} (exit code {code})"
    dead = Dead(
        process=DRIVER,
        detail=program.text if program is not None and program.number == number else detail,
        streams=[(log, stream) for log in driver_logs(evidence) for stream in log.streams if stream.is_own],
        rank=evidence.rank_of(evidence.state.job.get("driver_node_id")),
        at_ms=evidence.ended_ms,
        is_sudden=number == signal.SIGKILL,
    )
    return death(evidence, dead, budget)
