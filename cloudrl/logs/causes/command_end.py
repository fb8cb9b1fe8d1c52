"""How the command of a job ended: by the last words of its shell or interpreter, else by its exit code alone."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cloudrl.logs.causes.evidence import Evidence, LogTail, last_lines
from cloudrl.logs.causes.log_failures import DRIVER
from cloudrl.logs.causes.signatures import Signature, recognise
from cloudrl.logs.causes.suspect import MOST_LINES, Suspect

_EXIT_CODE = re.compile(r"Job entrypoint command failed with exit code (-?\d{1,3})\b")
_COMMAND = re.compile(r"Running entrypoint for job \S{1,200}: ")
"""Ray 2.60, dashboard/modules/job: job_manager.py and job_supervisor.py."""
_ENDED = re.compile(
    r"^(?P<script>\S{1,300}): line (?P<line>\d{1,6}): {1,8}(?P<pid>\d{1,10}) (?P<how>[A-Z][a-z]+(?: [a-z]+){0,2})"
    r"(?: {1,40}\(core dumped\))? {1,40}(?P<command>\S.*)$"
)
"""What bash says of a program of a script that a signal has ended (bash 5.2, jobs.c: notify_of_job_status)."""
_HOW = {
    "Killed": signal.SIGKILL,
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
    "Floating point exception": signal.SIGFPE,
    "Terminated": signal.SIGTERM,
}
"""strsignal(3) -> the signal."""
_CODES = {126: "a shell's for a program that may not be run", 127: "a shell's for a program that it does not find"}
_MOST_WORDS = 10
"""Of its own last lines, in which a message of a shell is its end: it goes on after most of them."""
_LONGEST = 300


@dataclass(frozen=True)
class Ended:
    """The end of a program by a signal.

    Attributes:
        number: of the signal.
        text: for example `python3 train.py (pid 42) was killed by signal 9, SIGKILL`.
    """

    number: int
    text: str


def exit_code(evidence: Evidence) -> int | None:
    """That of the job's command, negative for a signal; None if it is not known."""
    code = evidence.state.job.get("driver_exit_code")
    quoted = _EXIT_CODE.search(str(evidence.state.job.get("message") or "")[:200])
    return code if isinstance(code, int) else int(quoted[1]) if quoted is not None else None


def ended_by(code: int | None) -> signal.Signals | None:
    """The signal of which an exit code speaks; None if it speaks of none."""
    number = -code if code is not None and code < 0 else (code or 0) - 128
    return signal.Signals(number) if number in {each.value for each in signal.Signals} else None


def driver_logs(evidence: Evidence) -> list[LogTail]:
    """The driver's log; where it is lost, its end as Ray quotes it."""
    job, logs = evidence.state.job, [log for log in evidence.logs if log.is_driver and log.lines]
    quoted = last_lines(str(job.get("message") or "").splitlines())
    return logs or [LogTail("job-driver-.log", evidence.rank_of(job.get("driver_node_id")), quoted)]


def program_ended(evidence: Evidence) -> Ended | None:
    """The program that a signal has ended, as the shell of the job's command says it at its end."""
    for line in reversed(_own_lines(evidence)[-_MOST_WORDS:]):
        match = _ENDED.match(line)
        if match is not None and match["how"] in _HOW:
            number = _HOW[match["how"]]
            command = match["command"][:_LONGEST]
            place = f"pid {match['pid']}, {match['script']} line {match['line']}"
            return Ended(number, f"`{command}` ({place}) was killed by signal {number.value}, {number.name}")
    return None


def last_words(evidence: Evidence) -> Suspect | None:
    """What the job's shell or interpreter has said last, if that tells what is wrong with the job's command.

    Of a job that had not ended when it was looked at, the last lines are not its end.
    """
    if exit_code(evidence) == 0 or evidence.was_running:
        return None
    if (ended := program_ended(evidence)) is not None:
        return _suspect(evidence, ended.text, recognise(ended.text, is_end=True))
    for line in _own_lines(evidence)[-_MOST_WORDS:]:
        signature = recognise(line, is_end=True)
        if signature is not None and signature.is_end:
            return _suspect(evidence, line, signature)
    return None


def bare_exit(evidence: Evidence) -> Suspect | None:
    """The exit code of the job's command, of which nothing else is known."""
    code = exit_code(evidence)
    if not code:
        return None
    printed = [line for line in _own_lines(evidence) if not _COMMAND.match(line)]
    by, last = ended_by(code), next(reversed(printed), "")
    meaning = f" ({_CODES[code]})" if code in _CODES else ""
    text = f"the job's command ended with exit code {code}{meaning}"
    if by is not None:
        text = f"the job's command was ended by signal {by.value}, {by.name} (exit code {code})"
    last_line = f"; the last line of its log is: {last[:_LONGEST]}" if last else " and has printed nothing"
    return _suspect(evidence, text + last_line, recognise(text, is_end=True))


def _suspect(evidence: Evidence, error: str, signature: Signature | None) -> Suspect:
    lines, rank = _own_lines(evidence), evidence.rank_of(evidence.state.job.get("driver_node_id"))
    shown = lines[-MOST_LINES:] if len(lines) <= MOST_LINES else [*_command(lines), *lines[1 - MOST_LINES :]]
    rank = rank if rank is not None else next((log.rank for log in driver_logs(evidence)), None)
    return Suspect(error, tuple(shown), evidence.ended_ms, rank, DRIVER, crashed=True, signature=signature)


def _command(lines: Sequence[str]) -> Iterator[str]:
    return (line for line in lines[:1] if _COMMAND.match(line))


def _own_lines(evidence: Evidence) -> list[str]:
    """What the command has printed itself, in its order, without empty lines."""
    placed = [
        (place, line.text)
        for log in driver_logs(evidence)
        for stream in log.streams
        if stream.is_own
        for place, line in zip(stream.places, stream.lines, strict=True)
        if line.text.strip()
    ]
    return [text for _, text in sorted(placed)]
