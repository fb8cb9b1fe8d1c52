"""Raw rows from files: what they say is what comes out, and what is wrong is named with its place."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudrl.data.files import read_files
from cloudrl.errors import InputError

ROWS = [{"question": "1 + 1?", "answer": "002"}, {"question": "NA", "answer": 'a,b\n"c"'}]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=2))
    else:
        path.write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    return path


def read(place: Path, config: str | None = None) -> dict[str, list[Any]]:
    return {split: list(table) for split, table in read_files(place, config).items()}


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_a_file_is_one_split_and_can_be_read_again(suffix: str, tmp_path: Path) -> None:
    table = read_files(write(tmp_path / f"any name{suffix}", ROWS))["train"]
    assert [list(table), list(table)] == [ROWS, ROWS]


def test_json_may_hold_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", ROWS).rename(tmp_path / "x.json")
    assert read(path) == {"train": ROWS}


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv"])
def test_a_byte_order_mark_is_no_part_of_the_first_column(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"x{suffix}", ROWS)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read(path) == {"train": ROWS}


def test_a_text_may_be_long(tmp_path: Path) -> None:
    rows = [{"question": "x" * 300_000, "answer": "1"}]
    assert read(write(tmp_path / "x.csv", rows)) == {"train": rows}


def test_a_folder_has_its_files_as_splits(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", ROWS)
    write(tmp_path / "test.jsonl", ROWS[:1])
    (tmp_path / "README.md").write_text("#")
    assert read(tmp_path) == {"train": ROWS, "test": ROWS[:1]}


def test_shards_follow_each_other(tmp_path: Path) -> None:
    for part in (1, 0):
        write(tmp_path / "data" / f"train-0000{part}-of-00002.parquet", ROWS[part : part + 1])
    assert read(tmp_path) == {"train": ROWS}


def test_a_configuration_is_a_folder(tmp_path: Path) -> None:
    for name, rows in (("main", ROWS), ("socratic", ROWS[:1])):
        write(tmp_path / name / "train-00000-of-00001.parquet", rows)
    assert read(tmp_path, "socratic") == {"train": ROWS[:1]}
    with pytest.raises(InputError, match=r"no file that ends in .*; folders with data in it: main, socratic"):
        read_files(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "x.jsonl",
            b"{}\n{oops\n",
            "x.jsonl, line 2: not JSON: Expecting property name enclosed in double quotes (column 2)",
        ),
        (
            "x.jsonl",
            b'{}\n{"a": 1,\n',
            "x.jsonl, line 2: not JSON: Expecting property name enclosed in double quotes (column 9)",
        ),
        (
            "x.json",
            b'[{"a": 1},\n{oops}]',
            "x.json: not JSON: Expecting property name enclosed in double quotes (line 2, column 2)",
        ),
        ("x.jsonl", b"[1]\n", "x.jsonl, line 1: a row should be a mapping, not '[1]'"),
        ("x.jsonl", b"[" * 100_000, "x.jsonl, line 1: not JSON: "),
        ("x.jsonl", b'{"a": "\xff"}\n', "x.jsonl is not UTF-8: "),
        ("x.json", b'[{"a": "\xff"}]', "x.json is not UTF-8: "),
        ("x.json", b"[" + b" " * 20_000 + b'{"a": "\xff"}]', "x.json is not UTF-8: "),
        ("x.json", b'{"a": "\xff"}\n', "x.json is not UTF-8: "),
        ("x.json", b"[1, 2]", "x.json, row 1: a row should be a mapping, not '1'"),
        ("x.json", b'[{"a": 1}', "x.json: not JSON: "),
        ("x.json", b'{\n"a": 1}', "x.json, line 1: not JSON: "),
        ("x.csv", b"a,b\n1,2\n1\n", "x.csv, line 3: 1 cells for 2 columns"),
        ("x.csv", b'a,b\n1,"2\n', "x.csv, line 2: unexpected end of data"),
        ("x.csv", b"a,a\n1,2\n", "x.csv: two columns have the same name: a, a"),
        ("x.csv", b"a\n\xff\n", "x.csv, line "),
        ("x.parquet", b"PAR1", "x.parquet cannot be read as parquet: "),
        ("x.parquet", b"", "x.parquet cannot be read as parquet: "),
        ("x.txt", b"", "x.txt does not end in .jsonl, .json, .csv, .parquet"),
    ],
)
def test_a_bad_file_is_named_with_the_place(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=re.escape(message)):
        read(tmp_path / name)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(f"{tmp_path / 'no'} does not exist")):
        read_files(tmp_path / "no")
    with pytest.raises(InputError, match="has no file that ends in"):
        read_files(tmp_path)


def test_a_split_in_two_forms_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", ROWS)
    write(tmp_path / "train.jsonl", ROWS)
    with pytest.raises(InputError, match=r"has split 'train' twice: train\.csv, train\.jsonl"):
        read_files(tmp_path)


texts = st.text(st.characters(exclude_categories=["Cs"]))


@settings(max_examples=60)
@given(
    suffix=st.sampled_from([".jsonl", ".json", ".csv", ".parquet"]),
    cells=st.lists(st.tuples(texts, texts), min_size=1, max_size=4),
)
def test_any_text_comes_out_as_it_went_in(
    suffix: str, cells: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = [{"a b": left, "é": right} for left, right in cells]
    assert read(write(tmp_path_factory.mktemp("x") / f"x{suffix}", rows)) == {"train": rows}
