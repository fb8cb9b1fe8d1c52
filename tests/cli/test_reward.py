"""`cloudrl reward test`, and the same in `check`, `run --dry-run` and `submit`."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_local import FakeLocal
from typed_command import Run

import cloudrl

pytestmark = pytest.mark.io

HEAD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
GOOD = f"{HEAD}    return float(f'#### {{ground_truth}}' in solution_str)\n"


@pytest.fixture(autouse=True)
def here(home: Path) -> Path:
    """A reward function and rows in the working directory; skipped where the kernel gives no isolation."""
    Path("reward.py").write_text(GOOD)
    rows = {
        "prompt": [[{"role": "user", "content": "?"}]] * 2, "data_source": ["mine"] * 2,
        "reward_model": [{"ground_truth": "42"}, {"ground_truth": "7"}], "extra_info": [{"index": 0}, {"index": 1}],
    }  # fmt: skip
    Path("mine").mkdir()
    for name in ("train", "test"):
        pq.write_table(pa.table(rows), f"mine/{name}.parquet")
    if tested := cloudrl.reward_test("reward.py").skipped:
        pytest.skip(tested)
    return home


def test_scores_time_and_what_verl_passes(run: Run) -> None:
    done = run("reward", "test", "reward.py", "--data", "./mine", "--answer", "#### 7").ended(0)
    lines = done.out.splitlines()
    assert lines[1].split() == ["1", "'42'", "1", "0", "0", "'####", "...'"]
    assert lines[2].split() == ["2", "'7'", "1", "0", "0", "'####", "...'"]
    assert "row 1, your answer '#### 7': 0" in lines
    assert "row 2, your answer '#### 7': 1" in lines
    assert any(line.endswith("ms an answer") for line in lines)
    assert any(line.startswith("verl passes: data_source='mine', solution_str='...'") for line in lines)


def test_a_module_beside_it_is_found_as_the_hint_says(run: Run) -> None:
    Path("scoring.py").write_text("def near(answer, truth):\n    return float(truth in answer)\n")
    Path("reward.py").write_text(f"from scoring import near\n{HEAD}    return near(solution_str, ground_truth)\n")
    refused = run("reward", "test", "./reward.py", "--data", "./mine").ended(2)
    [words] = [
        line.partition("Send its folder with it: ")[2] for line in refused.err.splitlines() if "Send its" in line
    ]
    done = run("reward", "test", "./reward.py", "--data", "./mine", *words.split()).ended(0)
    assert done.out.splitlines()[1].split()[2:5] == ["1", "0", "0"]


def test_as_json(run: Run) -> None:
    fields = json.loads(
        run("reward", "test", "./reward.py::compute_score", "--data", "mine/train.parquet", "--json").out
    )
    assert fields["ok"] is True
    assert fields["rows"][1] == {
        "row": 2, "made_up": False, "ground_truth": "7", "right": 1.0, "wrong": 0.0, "empty": 0.0, "form": "#### {}",
    }  # fmt: skip
    assert fields["passed"]["extra_info"]["num_turns"] == 2
    Path("reward.py").write_text(f"{HEAD}    if solution_str:\n        return 1.0\n")
    done = run("reward", "test", "./reward.py", "--json").ended(2)
    [finding] = json.loads(done.out)["findings"]
    assert (finding["kind"], finding["level"], finding["line"]) == ("return", "error", 2)


def test_rows_of_a_raw_file(run: Run) -> None:
    rows = "".join(json.dumps({"question": f"{n} + 1?", "answer": str(n + 1)}) + "\n" for n in range(12))
    Path("questions.jsonl").write_text(rows)
    fields = json.loads(run("reward", "test", "reward.py", "--data", "./questions.jsonl", "--json").ended(0).out)
    assert [row["right"] for row in fields["rows"]] == [1.0] * 3
    assert fields["passed"]["data_source"] == "questions"


def test_two_faults_at_once(run: Run) -> None:
    Path("reward.py").write_text("import sympy_not_there\ndef compute_score(answer):\n    pass\n")
    typed = run("reward", "test", "reward.py")
    typed.ended(
        2, "for 2 reasons", "./reward.py:2: compute_score(", "has no `return`", "warning: ./reward.py:1: imports"
    )


def test_what_cannot_be_tried(run: Run) -> None:
    run("reward", "test", "rewards.py").ended(2, "does not exist; did you mean 'reward.py'?")
    run("reward", "test", "mine").ended(2, "is a folder")
    run("reward", "test", "reward.py:score").ended(2, "defines no 'score'")
    run("reward", "test", "reward.py", "--data", "./absent").ended(2, "--data ./absent", "does not exist", "→ ls ")
    Path("raw.parquet").write_bytes(b"x")
    run("reward", "test", "reward.py", "--data", "./raw.parquet").ended(2, "not a parquet file", "cloudrl data prepare")
    Path("reward.py").write_text("def compute_score(:\n")
    run("reward", "test", "reward.py").ended(2, "is not Python: line 1")


def test_overrides_say_how_it_is_called(run: Run) -> None:
    Path("reward.py").write_text(
        f"{HEAD.replace('extra_info', 'scale, extra_info')}    return scale * (ground_truth in solution_str)\n"
    )
    run("reward", "test", "reward.py").ended(2, "needs 'scale'")
    done = run("reward", "test", "reward.py", "+reward.custom_reward_function.reward_kwargs.scale=5").ended(0)
    assert done.out.splitlines()[1].split()[3:6] == ["5", "0", "0"]


def test_what_it_prints_is_shown_without_secrets(run: Run) -> None:
    Path("reward.py").write_text(GOOD.replace("    return", "    print('\\x1b[2Jhf_' + 'a' * 34)\n    return"))
    done = run("reward", "test", "reward.py").ended(0)
    assert "hf_" not in done.out + done.err
    assert "\x1b" not in done.out
    assert "  ***" in done.out.splitlines()


def test_check_and_dry_runs_call_it(run: Run, lab: FakeLocal) -> None:
    job = ("grpo", "--gpu", "H100:8", "--data", "./mine", "--reward", "./reward.py", "data.train_batch_size=2")
    said = "reward: compute_score of ./reward.py scores right 1, wrong 0, empty 0 (mean of 2 rows"
    run("check", *job).ended(0, said)
    Path("reward.py").write_text("def compute_score(answer, truth):\n    return 1.0\n")
    run("check", *job).ended(2, "./reward.py:1: compute_score(answer, truth) has no parameters 'data_source'")
    run("submit", "grpo-tiny", "--reward", "./reward.py", "--dry-run").ended(2, "./reward.py:1: compute_score(answer")
    run("submit", "grpo-tiny", "--reward", "./reward.py").ended(2, "./reward.py:1: compute_score(answer")
    run("submit", "grpo-tiny", "--reward", "./reward.py", "--dry-run", "--unchecked").ended(0)
    run("run", "grpo-tiny", "-c", "other", "--reward", "./reward.py", "--dry-run").ended(
        2, "./reward.py:1: compute_score("
    )


def test_in_python() -> None:
    tested = cloudrl.reward_test("reward.py", data="./mine", answers=("#### 42",))
    assert tested.ok
    assert [(row.right, row.wrong, row.empty) for row in tested.rows] == [(1.0, 0.0, 0.0)] * 2
    assert [each.score for each in tested.yours] == [1.0, 0.0]
    tested.raise_for_errors()
    Path("reward.py").write_text(f"{HEAD}    return 'good'\n")
    bad = cloudrl.reward_test("reward.py")
    assert not bad.ok
    with pytest.raises(cloudrl.InputError, match="returns 'good', a str and not a number"):
        bad.raise_for_errors()
