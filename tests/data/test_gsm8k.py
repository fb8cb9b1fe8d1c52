"""`gsm8k`: its final answers, wrong files, and what a node says that has no network. Rows: `test_built_in.py`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cloudrl.data import gsm8k
from cloudrl.data.parquet import SPLITS
from cloudrl.errors import InputError

if TYPE_CHECKING:
    pass

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


def test_a_missing_split_is_named(source: Path, tmp_path: Path) -> None:
    (source / "test.jsonl").unlink()
    with pytest.raises(InputError, match=r"has no test split of gsm8k: its splits are train$"):
        gsm8k.prepare(tmp_path / "out", source=source)


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
