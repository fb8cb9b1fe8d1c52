"""The `addition` data set."""

from pathlib import Path

import pyarrow.parquet

from cloudrl.data import addition, prepare


def rows(path: str) -> list[dict]:
    return pyarrow.parquet.read_table(path).to_pylist()


def test_rows_have_verls_columns_and_the_right_sum(tmp_path: Path) -> None:
    paths = prepare("addition", str(tmp_path / "new" / "folder"))
    assert [Path(paths[split]).name for split in ("train", "test")] == ["train.parquet", "test.parquet"]
    for split, path in paths.items():
        for index, row in enumerate(rows(path)):
            assert list(row) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
            assert row["data_source"] == "cloudrl/addition"
            assert row["extra_info"] == {"split": split, "index": index}
            [message] = row["prompt"]
            left, right = message["content"].removesuffix("=").split("+")
            assert message["role"] == "user"
            assert row["reward_model"] == {"style": "rule", "ground_truth": str(int(left) + int(right))}


def test_every_pair_stands_in_one_split_once() -> None:
    split = addition.pairs()
    assert (len(split["train"]), len(split["test"])) == (2400, 100)
    every = {(left, right) for left in range(50) for right in range(50)}
    assert set(split["train"]) | set(split["test"]) == every


def test_how_many_test_questions_are_trained_on_the_other_way_round() -> None:
    """README and docs/benchmarks.md say so."""
    split = addition.pairs()
    assert not set(split["test"]) & set(split["train"])
    assert len({(right, left) for left, right in split["test"]} & set(split["train"])) == 88


def test_the_bytes_are_always_the_same(tmp_path: Path) -> None:
    first, again = (addition.prepare(tmp_path / folder) for folder in ("first", "again"))
    assert [Path(path).read_bytes() for path in first.values()] == [Path(path).read_bytes() for path in again.values()]
