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
_WAITS = re.compile(
    r"/(subprocess|selectors|threading|queue)\.py$|/(multiprocessing|concurrent|site-packages|dist-packages)/"
)
"""Files of Python and of packages in which a call may take longer here than on a node."""
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
        is_program: whether that is a program to be started.
        network: whether the network was asked for before.
        is_memory: whether the memory was not enough.
    """

    type: str
    text: str = ""
    line: int | None = None
    module: str | None = None
    variable: str | None = None
    missing_file: str | None = None
    is_program: bool = False
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
        network: whether the call has asked for the network.
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
    network: bool = False


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
        is_waiting: whether that line was waiting for a program, another process, or a package of others.
        asked_network: whether the last call has asked for the network.
        left_out: files of the working directory that the child was not given.
        lacks_fields: whether verl adds to `extra_info` what the child was not given: what tools and agents return.
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
    is_waiting: bool = False
    asked_network: bool = False
    left_out: frozenset[str] = frozenset()
    lacks_fields: bool = False
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
    stuck, inner = _stuck(stacks, file) if ended.over == "time" else (None, [])
    return Trial(
        tuple(rows), tuple(scored), not_loaded, stage, last, ended.over, ended.status, stuck,
        any("importlib" in each for each in inner), any(map(_WAITS.search, inner)), network,
        output=mask_by_form(_STEERING.sub("", ended.output)),
    )  # fmt: skip


def _stuck(stacks: str, file: str) -> tuple[int | None, list[str]]:
    """The innermost line of the file in a dump of all threads, and the files of the calls that it was in.

    faulthandler writes the innermost call first, and threads one after another.
    """
    for thread in stacks.split("\n\n"):
        inner: list[str] = []
        for path, line in _STACK_LINE.findall(thread):
            if path == file:
                return int(line), inner
            inner.append(path)
    return None, []


def _failure(event: Mapping[str, Any]) -> Failure:
    return Failure(
        _text(event["type"]), _text(event["text"]), _line(event["line"]), _optional(event["module"]),
        _optional(event["variable"]), _optional(event["missing_file"]), bool(event["is_program"]),
        bool(event["network"]), bool(event["is_memory"]),
    )  # fmt: skip


def _scored(event: Mapping[str, Any], answer: Answer) -> Scored:
    if event["event"] == "raised":
        return Scored(answer, failure=_failure(event))
    more = {_text(key): _text(value) for key, value in event.get("more", {}).items()}
    if "problem" in event:
        return Scored(
            answer, None, float(event["seconds"]), more, str(event["problem"]), _text(event["type"]),
            _text(event["text"]), _line(event["line"]), network=bool(event["network"]),
        )  # fmt: skip
    return Scored(answer, float(event["score"]), float(event["seconds"]), more)


def _text(value: Any) -> str:
    """A text of the file's own, without secrets."""
    return mask_by_form(_STEERING.sub("", str(value)))


def _optional(value: Any) -> str | None:
    return None if value is None else _text(value)


def _line(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
