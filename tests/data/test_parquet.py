"""Both files whole and together, or none; and not more in memory than a row group."""

import itertools
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cloudrl.data.parquet import ROWS_A_GROUP, SPLITS, _publish, counted, write_splits
from cloudrl.errors import InputError


def pairs(train: int, test: int, text: str = "x") -> Iterator[tuple[str, dict[str, Any]]]:
    for split, count in (("train", train), ("test", test)):
        for number in range(count):
            yield split, {"text": text, "number": number}


def contents(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {path.name: pq.read_table(path).to_pylist() for path in folder.iterdir()}


def interrupted(after: int) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from itertools.islice(pairs(5, 5, "new"), after)
    raise KeyboardInterrupt


def test_paths_are_absolute_and_files_readable_by_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for split, path in write_splits("x", "deep/here", pairs(2, 1)).items():
        assert path == str(tmp_path / "deep" / "here" / f"{split}.parquet")
        assert Path(path).stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "deep" / "here").stat().st_mode & 0o777 == 0o755
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["here"]


def test_splits_may_come_mixed_and_in_many_row_groups(tmp_path: Path) -> None:
    count = 2 * ROWS_A_GROUP + 7
    mixed = ((SPLITS[number % 2], {"number": number}) for number in range(2 * count))
    paths = write_splits("x", tmp_path / "out", mixed)
    for offset, split in enumerate(SPLITS):
        rows = pq.read_table(paths[split]).column("number").to_pylist()
        assert rows == list(range(offset, 2 * count, 2))
        assert pq.ParquetFile(paths[split]).num_row_groups == 3


@pytest.mark.parametrize("after", [0, 1, 7, 10])
def test_an_interrupted_write_leaves_what_was_there(after: int, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write_splits("x", tmp_path / "new", interrupted(after))
    assert list(tmp_path.iterdir()) == []
    write_splits("x", tmp_path / "old", pairs(3, 2))
    before = contents(tmp_path / "old")
    with pytest.raises(KeyboardInterrupt):
        write_splits("x", tmp_path / "old", interrupted(after))
    assert contents(tmp_path / "old") == before


def test_a_folder_keeps_what_else_lies_in_it(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    write_splits("x", tmp_path, pairs(3, 2))
    write_splits("x", tmp_path, pairs(4, 1, "new"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "test.parquet", "train.parquet"]
    assert [pq.read_metadata(tmp_path / f"{split}.parquet").num_rows for split in SPLITS] == [4, 1]


@pytest.mark.parametrize("were_there", [True, False])
def test_when_one_file_cannot_take_its_place_it_is_as_before(were_there: bool, tmp_path: Path) -> None:
    """The second of the two new files is taken away before it can be moved."""
    folder, staged = tmp_path / "out", tmp_path / "out" / ".staged"
    staged.mkdir(parents=True)
    (staged / "train.parquet").write_text("new")
    if were_there:
        for split in SPLITS:
            (folder / f"{split}.parquet").write_text(f"old {split}")
    with pytest.raises(FileNotFoundError):
        _publish(staged, folder)
    assert {path.name: path.read_text() for path in folder.glob("*.parquet")} == (
        {f"{split}.parquet": f"old {split}" for split in SPLITS} if were_there else {}
    )


@pytest.mark.parametrize(("train", "test", "missing"), [(0, 3, "train"), (3, 0, "test"), (0, 0, "train")])
def test_a_split_without_rows_is_refused(train: int, test: int, missing: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^mine {missing}: there are no rows$"):
        write_splits("mine", tmp_path / "out", pairs(train, test))
    assert list(tmp_path.iterdir()) == []


def test_columns_that_change_their_type_are_refused(tmp_path: Path) -> None:
    rows = [("train", {"a": 1})] * ROWS_A_GROUP + [("train", {"a": "one"})]
    with pytest.raises(InputError, match=r"^mine train: its columns change their types"):
        write_splits("mine", tmp_path / "out", rows)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=re.escape(f"{tmp_path / 'file' / 'out'} cannot be written")):
        write_splits("mine", tmp_path / "file" / "out", pairs(1, 1))
    with pytest.raises(InputError, match=re.escape(f"{tmp_path / 'file'} is a file; a folder is expected")):
        write_splits("mine", tmp_path / "file", pairs(1, 1))
    (tmp_path / "out" / "test.parquet").mkdir(parents=True)
    (tmp_path / "out" / "test.parquet" / "part-0.parquet").touch()
    with pytest.raises(InputError, match=r"out/test\.parquet is a folder, where a file is to be written"):
        write_splits("mine", tmp_path / "out", pairs(1, 1))
    assert (tmp_path / "out" / "test.parquet" / "part-0.parquet").exists()


@pytest.mark.io
def test_memory_does_not_grow_with_the_number_of_rows(tmp_path: Path) -> None:
    """40 MB of text in all; each text is an object of its own, as if it were read from a file."""
    rows = (("train" if number else "test", {"text": f"{number}:" + "x" * 1000}) for number in range(20 * ROWS_A_GROUP))
    tracemalloc.start()
    try:
        write_splits("x", tmp_path / "out", rows)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 15e6


def progress_of(times: list[float], rows: list[str]) -> list[str]:
    """What is said when the clock shows `times`, one after the other."""
    said: list[str] = []
    clock = iter(times)
    pairs = [(split, number) for number, split in enumerate(rows)]
    assert list(counted("mine", pairs, said.append, clock=lambda: next(clock))) == pairs
    return said


def test_a_line_every_two_seconds_and_one_at_the_end() -> None:
    assert progress_of([0.0, 1.0, 2.0, 2.5, 4.5, 5.0], ["train", "train", "train", "test"]) == [
        "mine: 2 train rows, 1 rows/s",
        "mine: 3 train and 1 test rows, 1 rows/s",
        "mine: 3 train and 1 test rows in 5.0 s",
    ]


def test_a_quick_one_is_one_line() -> None:
    assert progress_of([0.0, 0.0, 0.0, 0.1], ["train", "test"]) == ["mine: 1 train and 1 test rows in 0.1 s"]


def test_thousands_are_readable() -> None:
    times = [0.0] * 2001 + [4.0, 4.0]
    assert progress_of(times, ["train"] * 2001)[0] == "mine: 2,001 train rows, 500 rows/s"


def test_a_written_data_set_says_how_many_rows_it_has(tmp_path: Path) -> None:
    said: list[str] = []
    write_splits("mine", tmp_path, [("train", {"a": 1}), ("test", {"a": 1})], say=said.append)
    [line] = said
    assert line.startswith("mine: 1 train and 1 test rows in ")
