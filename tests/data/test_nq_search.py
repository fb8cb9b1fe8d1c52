"""`nq_search` against the rows of Search-R1's own script.

nq_search/*.search-r1.jsonl is what scripts/data_process/nq_search.py of PeterGriffinJin/Search-R1 at a14dc3a makes of
nq_search/*.jsonl in place of the download, read row by row; the questions are ours.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cloudrl.data import nq_search
from cloudrl.data.catalog import BUILT_IN, built_in
from cloudrl.data.parquet import SPLITS
from cloudrl.data.request import parse_request
from cloudrl.errors import InputError

pytestmark = pytest.mark.io

RAW = Path(__file__).parent / "nq_search"


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("split", SPLITS)
def test_rows_are_those_of_search_r1s_script(split: str, tmp_path: Path) -> None:
    rows = pq.read_table(nq_search.prepare(tmp_path, source=RAW)[split]).to_pylist()
    assert len(rows) == {"train": 4, "test": 2}[split]
    for row, wanted in zip(rows, rows_of(RAW / f"{split}.search-r1.jsonl"), strict=True):
        assert row == wanted
        assert list(row) == list(wanted)


def test_columns_have_the_types_that_the_script_writes(tmp_path: Path) -> None:
    text, texts = pa.string(), pa.list_(pa.string())
    columns = {
        "id": text,
        "question": text,
        "golden_answers": texts,
        "data_source": text,
        "prompt": pa.list_(pa.struct({"role": text, "content": text})),
        "ability": text,
        "reward_model": pa.struct({"style": text, "ground_truth": pa.struct({"target": texts})}),
        "extra_info": pa.struct({"split": text, "index": pa.int64()}),
    }
    schema = pq.read_schema(nq_search.prepare(tmp_path, source=RAW)["train"])
    assert [(field.name, field.type) for field in schema] == list(columns.items())


def test_a_copy_of_the_hubs_repository_is_a_source(tmp_path: Path) -> None:
    copy = tmp_path / "FlashRAG_datasets" / "nq"
    copy.mkdir(parents=True)
    for split in SPLITS:
        (copy / f"{split}.jsonl").write_bytes((RAW / f"{split}.jsonl").read_bytes())
    from_copy = nq_search.prepare(tmp_path / "a", source=copy.parent)
    from_lines = nq_search.prepare(tmp_path / "b", source=RAW)
    for split in SPLITS:
        assert Path(from_copy[split]).read_bytes() == Path(from_lines[split]).read_bytes()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"question": "who", "answer": "x"},
            "question should be a text and golden_answers a list; it has answer, question",
        ),
        (
            {"question": "who", "golden_answers": "x"},
            "question should be a text and golden_answers a list; it has golden_answers, question",
        ),
        ({"question": " ", "golden_answers": ["x"]}, "its question or its list of answers is empty"),
        ({"question": "who", "golden_answers": []}, "its question or its list of answers is empty"),
    ],
)
def test_a_bad_row_is_named_and_nothing_is_written(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    folder.mkdir()
    for split in SPLITS:
        (folder / f"{split}.jsonl").write_bytes((RAW / f"{split}.jsonl").read_bytes())
    with (folder / "train.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    with pytest.raises(InputError, match=f"^nq_search train row 4: {re.escape(message)}$"):
        nq_search.prepare(tmp_path / "out", source=folder)
    assert not (tmp_path / "out").exists()


def test_its_name_means_it_and_the_hubs_collection_does_not() -> None:
    """The repository on the Hub holds dozens of data sets."""
    known = BUILT_IN["nq_search"]
    assert built_in(parse_request("nq_search")) is known
    assert known.hub_id == nq_search.HUB_ID
    assert built_in(parse_request(nq_search.HUB_ID)) is None
