"""`gsm8k` against the rows of verl's own script.

gsm8k/*.verl.jsonl is what verl 0.9.0's examples/data_preprocess/gsm8k.py makes of gsm8k/*.jsonl with
`--local_dataset_path`, read row by row; the questions are ours.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cloudrl import data
from cloudrl.data import gsm8k
from cloudrl.data.parquet import SPLITS
from cloudrl.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.io

RAW = Path(__file__).parent / "gsm8k"


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the raw rows that a test may spoil."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for split in SPLITS:
        shutil.copy(RAW / f"{split}.jsonl", folder)
    return folder


def spoil(source: Path, row: dict[str, Any]) -> None:
    """Make `row` the third of the training split."""
    rows = rows_of(source / "train.jsonl")
    rows[2] = row
    (source / "train.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))


@pytest.mark.parametrize("split", SPLITS)
def test_rows_are_those_of_verls_script(split: str, tmp_path: Path) -> None:
    paths = gsm8k.prepare(tmp_path, source=RAW)
    rows = pq.read_table(paths[split]).to_pylist()
    assert len(rows) == {"train": 7, "test": 2}[split]
    for row, wanted in zip(rows, rows_of(RAW / f"{split}.verl.jsonl"), strict=True):
        assert row == wanted
        assert list(row) == list(wanted)


def test_columns_have_the_types_that_verl_writes(tmp_path: Path) -> None:
    text = pa.string()
    columns = {
        "data_source": text,
        "prompt": pa.list_(pa.struct({"role": text, "content": text})),
        "ability": text,
        "reward_model": pa.struct({"style": text, "ground_truth": text}),
        "extra_info": pa.struct({"split": text, "index": pa.int64(), "answer": text, "question": text}),
    }
    schema = pq.read_schema(gsm8k.prepare(tmp_path, source=RAW)["train"])
    assert [(field.name, field.type) for field in schema] == list(columns.items())


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("3 + 4\n#### 7", "7"),
        ("#### 1,234,567", "1234567"),
        ("#### -5", "-5"),
        ("#### 0.50", "0.50"),
        ("#### 15%", "15"),
        ("#### 1\n#### 2", "1"),
        ("#### 12.", "12."),
        ("####7", None),
        ("#### $7", None),
        ("####  7", None),
        ("#### - 5", None),
        ("seven", None),
        ("", None),
    ],
)
def test_final_answer_follows_verls_expression(answer: str, number: str | None) -> None:
    assert gsm8k.final_answer(answer) == number


def test_verls_reward_finds_the_ground_truth_in_the_answer() -> None:
    from verl.utils.reward_score.gsm8k import compute_score

    for row in rows_of(RAW / "train.verl.jsonl"):
        answer, truth = row["extra_info"]["answer"], row["reward_model"]["ground_truth"]
        last_line = answer.splitlines()[-1]
        assert compute_score(last_line, gsm8k.final_answer(last_line)) == 1.0
        assert gsm8k.final_answer(answer) == truth


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"question": "How many?", "answer": "I think it is seven."},
            "gsm8k train row 2: no '#### <number>' in its answer, which ends 'I think it is seven.'",
        ),
        (
            {"question": "How many?", "solution": "#### 7"},
            "gsm8k train row 2: question and answer should be texts; it has question, solution",
        ),
        (
            {"question": "How many?", "answer": 7},
            "gsm8k train row 2: question and answer should be texts; it has answer, question",
        ),
    ],
)
def test_a_bad_row_is_named_and_nothing_is_written(
    row: dict[str, Any], message: str, source: Path, tmp_path: Path
) -> None:
    spoil(source, row)
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        gsm8k.prepare(tmp_path / "out", source=source)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "gsm8k test: there are no rows"),
        ("{oops\n", "test.jsonl, line 1: not JSON"),
        ("[1]\n", r"test.jsonl, line 1: a row should be a mapping, not '\[1\]'"),
    ],
)
def test_a_bad_file_is_named(text: str, message: str, source: Path, tmp_path: Path) -> None:
    (source / "test.jsonl").write_text(text)
    with pytest.raises(InputError, match=message):
        gsm8k.prepare(tmp_path / "out", source=source)


def test_a_missing_split_is_named(source: Path, tmp_path: Path) -> None:
    (source / "test.jsonl").unlink()
    with pytest.raises(InputError, match=r"has no test split of gsm8k: its splits are train$"):
        gsm8k.prepare(tmp_path / "out", source=source)


def test_a_copy_of_the_hubs_repository_is_a_source(tmp_path: Path) -> None:
    copy = tmp_path / "gsm8k" / "main"
    copy.mkdir(parents=True)
    for split in SPLITS:
        table = pa.Table.from_pylist(rows_of(RAW / f"{split}.jsonl"))
        pq.write_table(table, copy / f"{split}-00000-of-00001.parquet")
    from_hub = gsm8k.prepare(tmp_path / "a", source=tmp_path / "gsm8k")
    from_lines = gsm8k.prepare(tmp_path / "b", source=RAW)
    for split in SPLITS:
        assert Path(from_hub[split]).read_bytes() == Path(from_lines[split]).read_bytes()


def test_files_are_whole_readable_by_all_and_the_same_again(tmp_path: Path) -> None:
    first = {name: Path(path).read_bytes() for name, path in gsm8k.prepare(tmp_path, source=RAW).items()}
    again = gsm8k.prepare(str(tmp_path), source=str(RAW))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test.parquet", "train.parquet"]
    for split, path in again.items():
        assert Path(path).is_absolute()
        assert Path(path).read_bytes() == first[split]
        assert Path(path).stat().st_mode & 0o777 == 0o644


def test_it_is_known_by_name_and_imports_the_standard_library_only(run_python: Callable[[str], str]) -> None:
    assert "gsm8k" in data.names()
    heavy = "{'pyarrow', 'datasets', 'pandas', 'huggingface_hub'}"
    code = f"import sys, cloudrl.data.gsm8k; print(sorted({heavy} & set(sys.modules)))"
    assert run_python(code) == "[]\n"


def test_a_failed_download_ends_the_agents_child_with_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    """The real `datasets`, told not to use the network: as a node without a way out, but at once."""
    command = [sys.executable, "-m", "cloudrl.node", "data", "gsm8k", "--to", str(tmp_path / "out")]
    env = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    env.pop("HF_ENDPOINT", None)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert (
        "data set gsm8k: openai/gsm8k is not in the cache, and HF_HUB_OFFLINE=1 forbids to download it ("
        in last
    )
    assert last.endswith(") Set HF_HUB_OFFLINE=0, or give a folder of its rows as source")
    assert len(last) < 450
    assert not (tmp_path / "out").exists()
