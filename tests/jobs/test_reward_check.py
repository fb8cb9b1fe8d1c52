"""The job's own reward function, called before the job is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from planning import NOW, cluster, job, typed

from cloudrl.jobs import Submission, SubmitOptions, plan_job
from cloudrl.jobs.draft import Snapshot
from cloudrl.jobs.findings import ANYWAY, JobRefused
from cloudrl.jobs.local_files import inspect_files
from cloudrl.jobs.reward_check import examine_reward
from cloudrl.rewards.examine import Examined
from cloudrl.spec import Job

pytestmark = pytest.mark.io

HEAD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
GOOD = f"{HEAD}    return float(ground_truth in solution_str)\n"


def examined(here: Path, made: Job, options: SubmitOptions, **where: bool) -> Examined | None:
    files = inspect_files(made, options, here=here)
    found = examine_reward(made, options, files, **{"nodes_are_here": False, "may_install": False, **where})
    if found is not None and "no isolation" in found.skipped:
        pytest.skip(found.skipped)
    return found


def planned(here: Path, text: str, *overrides: str, made: Job | None = None, **options: Any) -> Submission:
    (here / "reward.py").write_text(text)
    made = made or job()
    asked = SubmitOptions(**{"reward": "./reward.py", "overrides": typed(*overrides), **options})
    files = inspect_files(made, asked, here=here)
    return plan_job(made, asked, Snapshot(cluster(), files, now=NOW, reward=examined(here, made, asked)))


def refusal(*arguments: Any, **options: Any) -> JobRefused:
    with pytest.raises(JobRefused) as caught:
        planned(*arguments, **options)
    return caught.value


def test_what_it_scores_is_a_note(tmp_path: Path) -> None:
    notes = planned(tmp_path, GOOD).notes
    assert any(
        note.startswith("reward: compute_score of ./reward.py scores right 1, wrong 0, empty 0 (") for note in notes
    )


def test_a_module_beside_it_goes_with_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "scoring.py").write_text("def near(answer, truth):\n    return float(answer == truth)\n")
    text = f"from scoring import near\n{HEAD}    return near(solution_str, ground_truth)\n"
    with pytest.raises(JobRefused, match="imports 'scoring', which is beside it"):
        planned(tmp_path, text)
    sent = planned(tmp_path, text, working_dir=str(tmp_path))
    assert any("compute_score of ./reward.py scores right 1, wrong 0" in note for note in sent.notes)
    assert "reward.custom_reward_function.path=reward.py" in sent.argv


def test_what_verl_would_fail_with_is_refused_and_may_be_sent_unchecked(tmp_path: Path) -> None:
    error = refusal(tmp_path, "def compute_score(answer, truth):\n    return 1.0\n")
    assert error.message.startswith("./reward.py:1: compute_score(answer, truth) has no parameters 'data_source'")
    assert error.hint is not None
    assert error.hint.splitlines()[-1] == ANYWAY
    assert planned(tmp_path, "def compute_score(answer, truth):\n    return 1.0\n", unchecked=True)


def test_all_faults_stand_beside_those_of_the_configuration(tmp_path: Path) -> None:
    error = refusal(tmp_path, f"{HEAD}    pass\n", "algorithm.adv_estimator=grop")
    texts = [finding.text for finding in error.findings]
    assert [text.partition(":")[0] for text in texts[:1]] == ["./reward.py"]
    assert "algorithm.adv_estimator=grop" in texts[1]


def test_a_function_that_another_key_names(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"{GOOD}def other(answer):\n    return 1.0\n")
    words = ("reward.custom_reward_function.path=./mine.py", "reward.custom_reward_function.name=other")
    error = refusal(tmp_path, GOOD, *words, reward=None)
    assert error.message.startswith("./mine.py:3: other(answer) has no parameters")
    error = refusal(tmp_path, GOOD, reward="./mine.py:other")
    assert error.message.startswith("./mine.py:3: other(answer) has no parameters")


def test_a_reward_of_the_recipe(tmp_path: Path) -> None:
    recipe = job(overrides={**job().overrides, "reward.custom_reward_function.path": "./reward.py"})
    error = refusal(tmp_path, f"{HEAD}    pass\n", made=recipe, reward=None)
    assert "has no `return`" in error.message


def test_rows_of_the_job_are_scored(tmp_path: Path) -> None:
    rows = {
        "prompt": [[{"role": "user", "content": "6 x 7?"}]] * 2, "data_source": ["mine"] * 2,
        "reward_model": [{"ground_truth": "42"}, {"ground_truth": "7"}], "extra_info": [{"unit": "kg"}, {"unit": None}],
    }  # fmt: skip
    for name in ("train.parquet", "test.parquet"):
        pq.write_table(pa.table(rows), tmp_path / name)
    text = f"{HEAD}    return float(f'{{ground_truth}} kg'.endswith(extra_info['unit']))\n"
    words = ("data.train_files=./train.parquet", "data.val_files=./test.parquet", "data.train_batch_size=2")
    error = refusal(tmp_path, text, *words)
    assert "./reward.py:2: compute_score raises TypeError" in error.message.replace(
        ": raises", ": compute_score raises"
    )
    assert "on row 2 with the right answer" in error.message


def test_other_jobs_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text("def compute_score():\n    return 1.0\n")

    def looked_at(made: Job, **options: Any) -> bool:
        return examined(tmp_path, made, SubmitOptions(**options)) is not None

    assert looked_at(job(), reward="./reward.py")
    assert not looked_at(job(), reward="./reward.py", unchecked=True)
    assert not looked_at(job(), reward="pkg://cloudrl.verl_cpu.reward")
    assert not looked_at(job(), reward="/on/the/nodes.py")
    assert not looked_at(job(), reward="./absent.py")
    assert not looked_at(job(entrypoint=["python3", "other.py"]), reward="./reward.py")
    assert not looked_at(job())


def test_packages_that_the_job_installs(tmp_path: Path) -> None:
    text = f"import sympy_not_there\n{GOOD}"
    submission = planned(tmp_path, text, runtime_env={"pip": ["sympy-not-there"]})
    assert any("./reward.py:1: imports 'sympy_not_there'" in warning for warning in submission.warnings)


def test_a_module_of_the_image_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudrl.rewards.examine.python_paths", tuple)
    submission = planned(tmp_path, f"import vllm\n{GOOD}")
    assert any("./reward.py:1: imports 'vllm', which the image has" in note for note in submission.notes)


def test_a_reward_model_is_only_on_the_cluster(tmp_path: Path) -> None:
    text = "def compute_score(**kwargs):\n    return 1.0\n"
    (tmp_path / "reward.py").write_text(text)
    options = SubmitOptions(reward="./reward.py", overrides=typed("reward.reward_model.enable=True"))
    found = examined(tmp_path, job(), options)
    assert found is not None
    assert "the reward model" in found.skipped
