"""Rows of a data set, and answers to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cloudrl.rewards.rows import (
    EMPTY,
    RIGHT,
    WRONG,
    YOURS,
    Row,
    UnreadableRows,
    answers_to,
    made_up_rows,
    read_rows,
    truth_text,
    wrong_text,
)


def write(path: Path, truths: list[Any], **columns: list[Any]) -> Path:
    rows = {
        "data_source": ["mine"] * len(truths),
        "reward_model": [{"ground_truth": truth} for truth in truths],
        "extra_info": [{"index": index} for index in range(len(truths))],
        **columns,
    }
    pq.write_table(pa.table({name: values for name, values in rows.items() if values}), path)
    return path


def test_the_first_rows_count_from_one(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path / "a.parquet", ["1", "2", "3", "4"]))
    found = [(row.number, row.ground_truth, row.extra_info["index"]) for row in rows]
    assert found == [(1, "1", 0), (2, "2", 1), (3, "3", 2)]


def test_one_of_the_rows_has_another_truth_if_any_has(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path / "a.parquet", ["yes"] * 10 + ["no"]))
    assert [(row.number, row.ground_truth) for row in rows] == [(1, "yes"), (2, "yes"), (11, "no")]


def test_the_column_of_the_data_source(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", ["1"], origin=["elsewhere"], extra_info=[])
    [row] = read_rows(path, "origin")
    assert (row.data_source, row.extra_info) == ("elsewhere", {})


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"not parquet", "it is not a parquet file"), (None, "it has no rows"), ("text", "row 1 has no reward_model")],
)
def test_files_without_rows_for_verl(tmp_path: Path, content: bytes | str | None, why: str) -> None:
    path = tmp_path / "a.parquet"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        pq.write_table(pa.table({"reward_model": [content] if content else pa.array([], pa.string())}), path)
    with pytest.raises(UnreadableRows, match=why):
        read_rows(path)


@pytest.mark.parametrize(
    ("truth", "text"),
    [
        ("72", "72"), (72, "72"), (0.5, "0.5"), ({"target": ["Paris", "paris"]}, "Paris"), (["a", "b"], "a"),
        (True, "True"), ('{"inputs": ["1"]}', None), ("x" * 400, None), (None, None), ("", None), ([], None),
        ({"tests": [1]}, None),
    ],
)  # fmt: skip
def test_right_answers(truth: Any, text: str | None) -> None:
    assert truth_text(truth) == text


def test_wrong_answers() -> None:
    rows = (Row(1, "s", "12"), Row(2, "s", "123"), Row(3, "s", "7"))
    assert wrong_text(rows, 0) == "7"  # "123" holds "12"
    assert wrong_text(rows, 2) == "12"
    assert wrong_text(rows[:1], 0) == "-98765"
    assert wrong_text((Row(1, "s", "Paris"),), 0) == "something else"


def test_answers_in_all_forms_and_an_empty_one() -> None:
    rows = (Row(1, "s", "72", {"answer": "He has #### 72"}), Row(2, "s", {"tests": []}))
    answers = answers_to(rows, ["mine"])
    first, second = ([each for each in answers if each.row == index] for index in (0, 1))
    assert first[0].text == "He has #### 72"
    rights = {each.text for each in first if each.kind == RIGHT}
    assert {"72", "#### 72", "\\boxed{72}", "<answer>72</answer>"} <= rights
    assert [each.text for each in first if each.kind in (EMPTY, YOURS)] == ["", "mine"]
    assert {each.kind for each in second} == {WRONG, EMPTY, YOURS}


def test_made_up_rows_say_so() -> None:
    assert all(row.is_made_up and row.data_source == "openai/gsm8k" for row in made_up_rows("openai/gsm8k"))
