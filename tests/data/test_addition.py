"""The `addition` data set."""

from __future__ import annotations

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


def test_every_pair_stands_in_one_split_once(tmp_path: Path) -> None:
    paths = addition.prepare(str(tmp_path), largest=3, test_rows=5)
    questions = {split: [row["prompt"][0]["content"] for row in rows(path)] for split, path in paths.items()}
    assert len(questions["test"]) == 5
    everything = questions["train"] + questions["test"]
    assert sorted(everything) == sorted(f"{left}+{right}=" for left in range(4) for right in range(4))


def test_how_many_test_questions_are_trained_on_the_other_way_round() -> None:
    """README and docs/benchmarks.md say so."""
    split = addition.pairs()
    assert not set(split["test"]) & set(split["train"])
    assert len({(right, left) for left, right in split["test"]} & set(split["train"])) == 88


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    def content(seed: int) -> list[bytes]:
        folder = tmp_path / str(seed)
        return [Path(path).read_bytes() for path in addition.prepare(str(folder), seed=seed).values()]

    first = content(0)
    assert content(0) == first
    assert content(1) != first
