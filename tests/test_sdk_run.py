"""`cloudrl.run`, towards a stand-in cluster that is up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fake_local import FakeLocal

import cloudrl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.io


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLocal]:
    monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with FakeLocal("lab") as fake:
        yield fake


def test_a_cluster_that_is_up_takes_the_job(lab: FakeLocal) -> None:
    done = cloudrl.run("grpo-tiny", {"trainer.test_freq": 5}, cluster="lab", steps=2, submission_id="one")
    assert (done.cluster.provider, done.job.submission_id, done.job.total_steps) == ("local", "one", 2)
    assert "trainer.test_freq=5" in lab.cluster.jobs["one"].body["entrypoint"]


def test_one_that_is_declared_otherwise_is_refused(lab: FakeLocal) -> None:
    declared = cloudrl.Cluster(name="lab", nodes=3, data=["addition"], models=["tiny-qwen2"])
    with pytest.raises(cloudrl.InputError, match="is up with 2 nodes, and 3 are asked for"):
        cloudrl.run("grpo-tiny", cluster=declared, on="local")
    assert lab.cluster.jobs == {}


def test_what_cannot_work_is_refused_before_anything_starts(lab: FakeLocal) -> None:
    with pytest.raises(cloudrl.InputError, match="computes on GPUs"):
        cloudrl.run(
            "grpo",
            {"actor_rollout_ref.rollout.tensor_model_parallel_size": 1},
            cluster=cloudrl.Cluster(name="other", data=["gsm8k"], models=["Qwen/Qwen2.5-7B-Instruct"]),
        )
