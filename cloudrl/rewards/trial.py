"""What came of calling a reward function: read from the records that `cloudrl.rewards.runner` has written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cloudrl.foreign import NOT_AS_EXPECTED, parse_json
from cloudrl.protocol.secret_names import mask_by_form
from cloudrl.rewards.rows import Answer, Row
from cloudrl.scripts.isolation import Ended

_STEERING = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""A sequence that steers a terminal (ECMA-48, 5.4). Its last letter would hide the first one of a token."""
_STACK_LINE = re.compile(r'File "(.*)", line (\d+) in ')


@dataclass(frozen=True)
class Failure:
    """An exception of the file, or of the function.

    Attributes:
        type: its class.
        text: its message.
        line: of the file, the last that the traceback passes; None if it does not pass the file.
        module: the module that is missing; None for any other exception.
        variable: the environment variable that is missing; likewise.
        missing_file: the file that is missing; likewise.
        network: whether the network was asked for before.
        is_memory: whether the memory was not enough.
    """

    type: str
    text: str = ""
    line: int | None = None
    module: str | None = None
    variable: str | None = None
    missing_file: str | None = None
    network: bool = False
    is_memory: bool = False


@dataclass(frozen=True)
class Scored:
    """What came of one answer.

    Attributes:
        answer: that was scored.
        score: the number; None if there was no finite one.
        seconds: that the call took.
        more: what the function returned beside the score, as short texts.
        problem: `no_number`, `not_finite`, `no_score` or `no_list`; "" if there is a score.
        type: of the value with the problem.
        text: the value with the problem.
        line: from which the value with the problem was returned.
        failure: the exception that was raised instead.
    """

    answer: Answer
    score: float | None = None
    seconds: float = 0.0
    more: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    type: str = ""
    text: str = ""
    line: int | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class Trial:
    """What came of calling a reward function.

    Attributes:
        rows: that were scored.
        scored: an answer each, in the order of the calls.
        not_loaded: why the file could not be loaded; None if it was.
        stage: `loading`, `calling` or `done`: how far it came.
        last: the answer at which it stopped; None if it stopped elsewhere.
        over: `time` or `memory`, at whose limit it was ended; else empty.
        status: the exit status; None if it was ended.
        stuck_line: of the file, where it was shortly before its time was over; None if unknown.
        is_importing: whether that line was importing another module.
        asked_network: whether the last call has asked for the network.
        output: the end of what it has written, without secrets.
    """

    rows: tuple[Row, ...]
    scored: tuple[Scored, ...] = ()
    not_loaded: Failure | None = None
    stage: str = "loading"
    last: Answer | None = None
    over: str = ""
    status: int | None = 0
    stuck_line: int | None = None
    is_importing: bool = False
    asked_network: bool = False
    output: str = ""

    @property
    def seconds_per_call(self) -> float | None:
        """The median time of a call; None without one that returned."""
        times = sorted(each.seconds for each in self.scored if each.failure is None)
        return times[len(times) // 2] if times else None


def read_trial(ended: Ended, rows: Sequence[Row], answers: Sequence[Answer], file: str) -> Trial:
    """Read the records; any that the runner has not written is passed over, since the function may write there, too.

    Args:
        ended: what came of the child.
        rows: that it was given.
        answers: likewise.
        file: the function's file, by its path for the child.
    """
    scored: list[Scored] = []
    not_loaded, stage, last, stacks, network = None, "loading", None, "", False
    for record in ended.records:
        try:
            event = parse_json(record)
            kind = event["event"]
            if kind == "not_loaded":
                not_loaded = _failure(event)
            elif kind in ("loaded", "done"):
                stage, last = ("calling", None) if kind == "loaded" else ("done", None)
            elif kind == "calling":
                last, network = answers[event["call"]], False
            elif kind == "network":
                network = True
            elif kind in ("returned", "raised"):
                scored.append(_scored(event, answers[event["call"]]))
                last = None
        except NOT_AS_EXPECTED:
            stacks = record
    stuck, is_importing = _stuck(stacks, file) if ended.over == "time" else (None, False)
    return Trial(
        tuple(rows), tuple(scored), not_loaded, stage, last, ended.over, ended.status, stuck, is_importing, network,
        mask_by_form(_STEERING.sub("", ended.output)),
    )  # fmt: skip


def _stuck(stacks: str, file: str) -> tuple[int | None, bool]:
    """The innermost line of the file in a dump of all threads, in which faulthandler writes the innermost first."""
    inner: list[str] = []
    for path, line in _STACK_LINE.findall(stacks):
        if path == file:
            return int(line), any("importlib" in each for each in inner)
        inner.append(path)
    return None, False


def _failure(event: Mapping[str, Any]) -> Failure:
    return Failure(
        _text(event["type"]), _text(event["text"]), _line(event["line"]), _optional(event["module"]),
        _optional(event["variable"]), _optional(event["missing_file"]), bool(event["network"]),
        bool(event["is_memory"]),
    )  # fmt: skip


def _scored(event: Mapping[str, Any], answer: Answer) -> Scored:
    if event["event"] == "raised":
        return Scored(answer, failure=_failure(event))
    more = {_text(key): _text(value) for key, value in event.get("more", {}).items()}
    if "problem" in event:
        return Scored(
            answer, None, float(event["seconds"]), more, str(event["problem"]), _text(event["type"]),
            _text(event["text"]), _line(event["line"]),
        )  # fmt: skip
    return Scored(answer, float(event["score"]), float(event["seconds"]), more)


def _text(value: Any) -> str:
    """A text of the file's own, without secrets."""
    return mask_by_form(_STEERING.sub("", str(value)))


def _optional(value: Any) -> str | None:
    return None if value is None else _text(value)


def _line(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
