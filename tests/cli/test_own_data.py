"""Mistakes with data of one's own that cost a new user minutes each: `check` names them before anything starts."""

import json
from pathlib import Path

import pytest
from typed_command import Run

pytestmark = pytest.mark.io

REWARD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 0.0\n"


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """48 questions as they are, the same as verl reads them, and a reward."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path / "home"))
    rows = [{"question": f"{number} + 1?", "answer": str(number + 1)} for number in range(48)]
    Path("questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("reward.py").write_text(REWARD)
    assert run("data", "prepare", "./questions.jsonl", "--to", "mine").code == 0


OWN = ("--reward", "./reward.py")


@pytest.mark.parametrize("data", ["./mine", "./questions.jsonl", "questions.jsonl"])
def test_fewer_rows_than_a_batch(run: Run, data: str) -> None:
    done = run("check", "grpo", "--gpu", "H100:8", "--data", data, *OWN)
    assert done.code == 2
    assert "data.train_batch_size=1024, and the training files have 46 rows" in done.err
    corrected = done.err.partition("Corrected: cloudrl ")[2].split()
    assert run(*corrected).code == 0


def test_raw_rows_are_converted(run: Run) -> None:
    done = run("check", "grpo-tiny", "--on", "local", "--data", "./questions.jsonl", *OWN)
    assert done.code == 0, done.err
    assert "./questions.jsonl was converted for verl: 46 training and 2 validation rows" in done.err


def test_a_data_source_without_a_reward(run: Run) -> None:
    done = run("check", "grpo", "--gpu", "H100:8", "--data", "./mine")
    assert done.code == 2
    assert "./mine/train.parquet: verl has no reward function for data source 'questions'" in done.err


def test_a_misspelt_data_set(run: Run) -> None:
    done = run("check", "grpo", "--gpu", "H100:8", "--data", "gsm9k")
    assert done.code == 2
    assert "--data gsm9k is neither a data set nor a file or folder here; did you mean 'gsm8k'?" in done.err
    assert "cluster" not in done.err
