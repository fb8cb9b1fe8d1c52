"""Rows of a data set, and answers to them: right ones in the forms that models write, a wrong one, an empty one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROWS = 3
"""So many rows are scored."""
_READ = 64
"""So many are looked at for right answers that differ."""
_LONGEST_TRUTH = 300
"""A longer ground truth, such as the tests of a program, is no answer to a question."""
_SOLUTIONS = ("answer", "solution", "response", "completion", "output")
"""Keys of `extra_info` below which data sets keep a whole solution, as gsm8k does."""
_LISTS = ("target", "answers", "answer", "ground_truth", "value", "label")
"""Keys of a ground truth that is a mapping, below which the answers are."""
FORMS = (
    "{}",
    "The answer is {}.",
    "#### {}",
    "\\boxed{{{}}}",
    "<answer>{}</answer>",
    "Answer: {}",
    "<think>\nI work it out.\n</think>\n<answer>\n{}\n</answer>",
    "<think>\nI work it out.\n</think>\nThe answer is \\boxed{{{}}}.",
)
"""How models are asked to write an answer; the reward functions of verl 0.9.1 (utils/reward_score) read one of them."""
SOLUTION = "solution"
"""The form of an answer that is the whole solution of the row."""
RIGHT, WRONG, EMPTY, YOURS = "right", "wrong", "empty", "yours"


class UnreadableRows(Exception):
    """A file has no rows that verl could score; the message says why."""


@dataclass(frozen=True)
class Row:
    """What verl's reward manager reads of a row.

    Attributes:
        number: of the row in its file, from 1.
        data_source: the name by which verl chooses one of its own functions.
        ground_truth: as the file has it.
        extra_info: as the file has it; empty without that column.
        is_made_up: whether it is no row of the user's data.
    """

    number: int
    data_source: Any
    ground_truth: Any
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    is_made_up: bool = False

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form of what is passed."""
        row = {"data_source": self.data_source, "ground_truth": self.ground_truth, "extra_info": dict(self.extra_info)}
        plain: dict[str, Any] = json.loads(json.dumps(row, default=str))  # bytes of an image, a date
        return plain


@dataclass(frozen=True)
class Answer:
    """A text that the function is to score.

    Attributes:
        row: index of its row.
        kind: `right`, `wrong`, `empty`, or `yours` for one that the user gives.
        form: one of `FORMS`, or `solution`; "" for any other kind.
        text: the answer.
    """

    row: int
    kind: str
    form: str
    text: str


def made_up_rows(data_source: str = "my-data") -> tuple[Row, ...]:
    """Rows with small numbers as their ground truth, where there is no data."""
    return tuple(
        Row(index + 1, data_source, truth, {"split": "train", "index": index}, is_made_up=True)
        for index, truth in enumerate(("42", "7", "1001"))
    )


def read_rows(path: Path, source_key: str = "data_source") -> tuple[Row, ...]:
    """The first rows of a parquet file in verl's columns, whose ground truths differ if any do.

    Args:
        path: the file.
        source_key: the column that names the data source (`data.reward_fn_key`).

    Raises:
        UnreadableRows: it is not such a file, or has no rows.
    """
    try:
        import pyarrow as pa
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise UnreadableRows("this Python has no pyarrow") from None
    try:
        with ParquetFile(path) as file:
            columns = [name for name in (source_key, "reward_model", "extra_info") if name in file.schema_arrow.names]
            batch = next(file.iter_batches(batch_size=_READ, columns=columns), None)
            raw = batch.to_pylist() if batch is not None else []
    except (OSError, pa.ArrowException) as failure:
        raise UnreadableRows(f"it is not a parquet file: {failure}".splitlines()[0]) from failure
    if not raw:
        raise UnreadableRows("it has no rows")
    rows = [_row(number, each, source_key) for number, each in enumerate(raw, 1)]
    return _chosen(rows)


def _row(number: int, raw: Mapping[str, Any], source_key: str) -> Row:
    model = raw.get("reward_model")
    if not isinstance(model, Mapping) or "ground_truth" not in model:
        raise UnreadableRows(f"row {number} has no reward_model.ground_truth")
    extra = raw.get("extra_info")
    return Row(number, raw.get(source_key), model["ground_truth"], extra if isinstance(extra, Mapping) else {})


def _chosen(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The first rows, with one among them whose ground truth is another."""
    first = list(rows[:ROWS])
    others = [row for row in rows[ROWS:] if row.ground_truth != first[0].ground_truth]
    if others and all(row.ground_truth == first[0].ground_truth for row in first):
        first[-1] = others[0]
    return tuple(first)


def answers_to(rows: Sequence[Row], given: Iterable[str] = ()) -> tuple[Answer, ...]:
    """What to have scored, the first row first: the right answer, a wrong one and an empty one.

    Args:
        rows: of the data set.
        given: answers of the user's own, for each row.
    """
    answers: list[Answer] = []
    for index, row in enumerate(rows):
        right, wrong = truth_text(row.ground_truth), wrong_text(rows, index)
        solution = _solution(row)
        if solution is not None:
            answers.append(Answer(index, RIGHT, SOLUTION, solution))
        for form in FORMS:
            if right is not None:
                answers.append(Answer(index, RIGHT, form, form.format(right)))
            answers.append(Answer(index, WRONG, form, form.format(wrong)))
        answers.append(Answer(index, EMPTY, "", ""))
        answers += [Answer(index, YOURS, "", text) for text in given]
    return tuple(answers)


def truth_text(truth: Any) -> str | None:
    """The right answer as a model would write it; None for a ground truth that is no answer, such as tests."""
    if isinstance(truth, bool) or truth is None:
        return None if truth is None else str(truth)
    if isinstance(truth, (int, float)):
        return str(truth)
    if isinstance(truth, Mapping):
        return next((truth_text(truth[key]) for key in _LISTS if truth.get(key)), None)
    if isinstance(truth, (list, tuple)):
        return truth_text(truth[0]) if truth else None
    text = str(truth).strip()
    is_structure = text.startswith(("{", "["))
    return text if text and len(text) <= _LONGEST_TRUTH and not is_structure else None


def wrong_text(rows: Sequence[Row], index: int) -> str:
    """An answer to one row that is wrong: the right one of another row, or else one that no row has."""
    right = truth_text(rows[index].ground_truth)
    for row in (*rows[index + 1 :], *rows[:index]):
        other = truth_text(row.ground_truth)
        if other is not None and right is not None and not _is_alike(right, other):
            return other
    return "-98765" if right is None or right.lstrip("-").replace(".", "").isdigit() else "something else"


def _is_alike(right: str, other: str) -> bool:
    """Whether a lenient function may take one for the other."""
    one, two = right.lower(), other.lower()
    return one in two or two in one


def _solution(row: Row) -> str | None:
    texts = (row.extra_info.get(key) for key in _SOLUTIONS)
    return next((text for text in texts if isinstance(text, str) and text.strip()), None)
