"""A reward function, tried on this machine as verl would call it on the nodes."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudrl.errors import InputError
from cloudrl.jobs import SubmitOptions
from cloudrl.jobs.conversion import convert_data
from cloudrl.jobs.local_files import PARTS, LocalFiles, inspect_files, is_marked, missing_path, split_reward
from cloudrl.jobs.prompt_lengths import training_files
from cloudrl.jobs.reward_check import examine_reward
from cloudrl.jobs.uploads import check_code
from cloudrl.rewards.examine import Examined
from cloudrl.rewards.rows import YOURS, UnreadableRows, read_rows
from cloudrl.rewards.scores import RowScores, scores_by_row, time_text
from cloudrl.rewards.trial import Scored
from cloudrl.rewards.verdict import Fault, Level
from cloudrl.spec import Job
from cloudrl.spec.quoting import quoted
from cloudrl.verl.keys import REWARD_FUNCTION

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from cloudrl.options.reward import RewardTestOptions

_LAST_LINES = 10
"""So much of the function's own output is shown."""


@dataclass(frozen=True)
class RewardTest:
    """What a reward function scores.

    Attributes:
        file: as it was named.
        function: its name.
        faults: what verl would fail with, what is to be looked at, and what could not be told here.
        rows: the scores of the right answer, a wrong one and an empty one, a row each.
        yours: what came of the answers that were given.
        seconds_per_answer: the median time of a call; None if none returned.
        passed: what verl passes by name, with the first row.
        output: the end of what it has printed, without secrets.
        skipped: why it was not called; empty if it was, or if a fault says it.
    """

    file: str
    function: str
    faults: tuple[Fault, ...]
    rows: tuple[RowScores, ...]
    yours: tuple[Scored, ...]
    seconds_per_answer: float | None
    passed: Mapping[str, Any]
    output: str
    skipped: str

    @property
    def ok(self) -> bool:
        """Whether it was called, and verl would not fail with it."""
        return bool(self.rows) and not self.errors

    @property
    def errors(self) -> tuple[Fault, ...]:
        """What verl would fail with."""
        return tuple(fault for fault in self.faults if fault.level is Level.ERROR)

    def raise_for_errors(self) -> None:
        """Raise `InputError` with all that verl would fail with, if anything."""
        errors = self.errors
        if len(errors) == 1:
            raise InputError(errors[0].text, hint=errors[0].hint or None)
        if errors:
            lines = [f"{self.file}: verl would fail with it, for {len(errors)} reasons:"]
            for each in errors:
                lines += [f"  {each.text}", *(f"    {line}" for line in each.hint.splitlines())]
            raise InputError("\n".join(lines))

    @property
    def remarks(self) -> tuple[str, ...]:
        """Warnings and notes, and why it was not called, a sentence each."""
        sentences = [
            f"{fault.level.value}: {fault.text}{f'. {fault.hint}' if fault.hint else ''}"
            for fault in self.faults
            if fault.level is not Level.ERROR
        ]
        return (*sentences, *([f"not called: {self.skipped}"] if self.skipped else []))

    @property
    def table(self) -> list[tuple[str, ...]]:
        """A line for each row: its number, ground truth, the three scores, and the form of the right answer."""
        return [
            (
                "made up" if each.row.is_made_up else str(each.row.number),
                quoted(each.row.ground_truth),
                *(_number(score) for score in (each.right, each.wrong, each.empty)),
                repr(each.form.format("...")) if each.right is not None else "",
            )
            for each in self.rows
        ]

    @property
    def lines(self) -> Iterator[str]:
        """Below the table: the answers of the user's own, the time, and what verl passes."""
        for each in self.yours:
            value = _number(each.score) if each.failure is None else each.failure.type
            yield f"row {each.answer.row + 1}, your answer {quoted(each.answer.text)}: {value}"
        if self.seconds_per_answer is not None:
            yield f"{time_text(self.seconds_per_answer)} an answer"
        yield f"verl passes: {', '.join(f'{name}={quoted(value)}' for name, value in self.passed.items())}"
        if self.output.strip():
            yield "it prints:"
            yield from (f"  {line[:200]}" for line in self.output.splitlines()[-_LAST_LINES:])

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "ok": self.ok, "file": self.file, "function": self.function,
            "rows": [
                {
                    "row": each.row.number, "made_up": each.row.is_made_up, "ground_truth": each.row.ground_truth,
                    "right": each.right, "wrong": each.wrong, "empty": each.empty, "form": each.form,
                }
                for each in self.rows
            ],
            "answers": [
                {
                    "row": each.answer.row + 1, "answer": each.answer.text, "score": each.score,
                    "more": dict(each.more), "error": each.failure and f"{each.failure.type}: {each.failure.text}",
                }
                for each in self.yours
            ],
            "seconds_per_answer": self.seconds_per_answer, "passed": dict(self.passed), "output": self.output,
            "findings": [fault.to_json() for fault in self.faults], "not_called": self.skipped or None,
        }  # fmt: skip


def reward_test(
    file: str | os.PathLike[str],
    overrides: Mapping[str, Any] | None = None,
    **options: Unpack[RewardTestOptions],
) -> RewardTest:
    """Call a reward function on some rows, with the right answer, a wrong one and an empty one, as verl calls it.

        tested = cloudrl.reward_test("./reward.py", data="./questions.jsonl")
        tested.raise_for_errors()
        print(tested.rows[0].right, tested.seconds_per_answer)

    It runs in a child process that is bounded in time, memory and output, and that sees no file, network or secret of
    this machine.

    Args:
        file: of the function, and its name if it is not `compute_score`: `./reward.py:my_reward`.
        overrides: in verl's keys: `reward_kwargs` of the function, and the reward manager.
        options: see `cloudrl.options.reward.RewardTestOptions`. Without `data`, rows are made up.

    Raises:
        InputError: there is no such file or function, verl could not load it, or the data has no rows for verl.
    """
    text = os.fspath(file).replace("::", ":")
    path, function = split_reward(text)
    path = path if is_marked(path) else f"./{os.path.relpath(path)}"
    data = options.get("data")
    asked = SubmitOptions(
        reward=f"{path}:{function}" if function else path, data=(data,) if data is not None else (),
        env=options.get("env", {}), working_dir=options.get("working_dir"), overrides=overrides or {},
    )  # fmt: skip
    job = Job(name="reward-test")
    files = convert_data(job, asked, inspect_files(job, asked), prepared=(), nodes_are_here=True)
    _check_file(files, path, text, function)
    if data is not None:
        _check_rows(data, asked, files)
    examined = examine_reward(
        job, asked, files, nodes_are_here=False, may_install=False, answers=options.get("answers", ()),
        isolated=options.get("isolated", True),
    )  # fmt: skip
    if examined is None:
        raise InputError(f"{text} is not a reward function of this machine")
    return _tested(path, examined)


def _check_file(files: LocalFiles, path: str, text: str, function: str | None) -> None:
    file = files.at(path)
    if not file.exists:
        raise missing_path(text, file)
    if file.is_folder:
        raise InputError(f"{text} is a folder, and not a Python file")
    check_code(file, function or REWARD_FUNCTION, option=text, is_in_root=files.is_in_root(file))


def _check_rows(data: str, asked: SubmitOptions, files: LocalFiles) -> None:
    """Refuse data without rows for verl: what was asked for explicitly is not replaced by made-up rows."""
    conversion = files.conversions.get(data)
    if conversion is not None and conversion.error is not None:
        raise conversion.error
    path = next((path for _, path in training_files({}, asked.data, files)), None)
    hint = f"Make it one that verl reads: cloudrl data prepare {shlex.quote(data)} --to ./prepared"
    if path is None and not (file := files.at(data)).exists:
        raise missing_path(f"--data {data}", file)
    if path is None:
        raise InputError(f"--data {data} is neither a data file here nor a folder with {PARTS[0]}", hint=hint)
    try:
        read_rows(path)
    except UnreadableRows as why:
        raise InputError(f"--data {data}: {why}", hint=hint) from why


def _tested(path: str, examined: Examined) -> RewardTest:
    trial = examined.trial
    return RewardTest(
        file=path,
        function=examined.named.function,
        faults=examined.faults,
        rows=scores_by_row(trial) if trial is not None and trial.scored else (),
        yours=tuple(each for each in trial.scored if each.answer.kind == YOURS) if trial is not None else (),
        seconds_per_answer=trial.seconds_per_call if trial is not None else None,
        passed=examined.passed_with(examined.rows[0]),
        output=trial.output if trial is not None else "",
        skipped=examined.skipped,
    )


def _number(score: float | None) -> str:
    return "-" if score is None else f"{score:g}"
