"""What `help(cloudrl.NAME)` shows: signatures that can be read, and examples that run."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from fake_local import FakeLocal
from small_step import write_step

import cloudrl
from cloudrl.jobs import JobHandle
from cloudrl.providers.local.provider import LocalProvider
from cloudrl.sdk.cluster import Cluster

pytestmark = pytest.mark.io

STEP = "step:20 - critic/score/mean:0.5 - timing_s/step:2.0"
REWARD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 0.5\n"
SCRIPT = "python3 -m verl.trainer.main_ppo data.train_files=/d/train.parquet trainer.total_epochs=1\n"


def documented() -> Iterator[tuple[str, Any]]:
    """Public name -> what it names."""
    yield "cloudrl", cloudrl
    for name in cloudrl.__all__:
        if callable(value := getattr(cloudrl, name)):
            yield name, value
    yield "Cluster.up", Cluster.up
    yield "JobHandle.follow", JobHandle.follow


def examples(value: Any) -> Iterator[str]:
    """The paragraphs of a docstring that are indented as a whole: code."""
    for paragraph in (inspect.getdoc(value) or "").split("\n\n"):
        if all(line.startswith("    ") for line in paragraph.splitlines()):
            yield dedent(paragraph)


EXAMPLES = [pytest.param(text, id=name) for name, value in documented() for text in examples(value)]


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What examples may name: a cluster that is up, which new ones are taken for, and whose jobs end at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path / "home"))
    (tmp_path / "reward.py").write_text(REWARD)
    (tmp_path / "questions.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n' * 3)
    (tmp_path / "train.sh").write_text(SCRIPT)
    with FakeLocal("ray-cluster", facts={"checkpoint_dir": str(tmp_path / "disk-0")}) as up:

        def save() -> None:
            """As the jobs would have done."""
            for job in up.cluster.jobs.values():
                run = tmp_path / "runs" / job.body["metadata"]["job_name"]
                if not run.exists():
                    write_step(run, 20)
                    up.cluster.hold_run(run, tmp_path)

        write_step(tmp_path / "runs" / "earlier", 10)
        up.cluster.hold_run(tmp_path / "runs" / "earlier", tmp_path)
        up.cluster.finish_jobs(f"{STEP}\n", on_end=save)
        monkeypatch.setattr(LocalProvider, "up", lambda self, _plan, **_: self.attach("ray-cluster"))
        ray = cloudrl.attach("ray-cluster")
        job = ray.submit("grpo-tiny", steps=20, name="mine", submission_id="shown")
        yield {"cloudrl": cloudrl, "cluster": cloudrl.Cluster(name="new"), "ray": ray, "job": job}


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_runs(text: str, names: dict[str, Any]) -> None:
    exec(compile(text, "docstring", "exec"), names)


def test_what_is_started_or_declared_has_an_example() -> None:
    without = {name for name, value in documented() if not list(examples(value))}
    errors = {name for name, value in documented() if inspect.isclass(value) and issubclass(value, Exception)}
    results = {"Notice", "Transfer", "RewardTest", "Run"}
    assert without == (errors - {"CloudrlError"}) | results


def test_a_step_is_one_line_by_default(names: dict[str, Any]) -> None:
    assert [str(event) for event in names["job"].follow()] == [
        "step 20/20  reward 0.500  2.0 s/step  ETA 0 s",
        "ended: SUCCEEDED",
    ]


@pytest.mark.parametrize("name", [name for name in cloudrl.__all__ if callable(getattr(cloudrl, name))])
def test_a_signature_shows_types(name: str) -> None:
    shown = str(inspect.signature(getattr(cloudrl, name)))
    assert "Annotated" not in shown
    assert "Validator" not in shown


def test_every_name_has_a_docstring() -> None:
    assert [name for name, value in documented() if not inspect.getdoc(value)] == []
