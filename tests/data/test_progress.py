"""Lines about the progress, by a clock of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudrl.data.parquet import write_splits
from cloudrl.data.progress import counted

if TYPE_CHECKING:
    from pathlib import Path


def lines_of(times: list[float], rows: list[str]) -> list[str]:
    """What is said when the clock shows `times`, one after the other."""
    said: list[str] = []
    clock = iter(times)
    pairs = [(split, number) for number, split in enumerate(rows)]
    assert list(counted("mine", pairs, said.append, clock=lambda: next(clock), every_s=2.0)) == pairs
    return said


def test_a_line_every_two_seconds_and_one_at_the_end() -> None:
    assert lines_of([0.0, 1.0, 2.0, 2.5, 4.5, 5.0], ["train", "train", "train", "test"]) == [
        "mine: 2 train rows, 1 rows/s",
        "mine: 3 train and 1 test rows, 1 rows/s",
        "mine: 3 train and 1 test rows in 5.0 s",
    ]


def test_a_quick_one_is_one_line() -> None:
    assert lines_of([0.0, 0.0, 0.0, 0.1], ["train", "test"]) == ["mine: 1 train and 1 test rows in 0.1 s"]


def test_thousands_are_readable() -> None:
    times = [0.0] * 2001 + [4.0, 4.0]
    assert lines_of(times, ["train"] * 2001)[0] == "mine: 2,001 train rows, 500 rows/s"


def test_a_written_data_set_says_how_many_rows_it_has(tmp_path: Path) -> None:
    said: list[str] = []
    write_splits("mine", tmp_path, [("train", {"a": 1}), ("test", {"a": 1})], say=said.append)
    [line] = said
    assert line.startswith("mine: 1 train and 1 test rows in ")
