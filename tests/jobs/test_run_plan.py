"""The cluster that a job needs, and whether the two go together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloudrl import recipes
from cloudrl.errors import InputError
from cloudrl.jobs import Submission, SubmitOptions, plan_job
from cloudrl.jobs.run_plan import (
    cluster_for_job,
    expected_shape,
    expected_snapshot,
)
from cloudrl.providers.dstack.provider import DstackProvider
from cloudrl.providers.local.provider import LocalProvider
from cloudrl.providers.model import Plan
from cloudrl.spec import Cluster, DataSet, Job
from cloudrl.transport.ray_client import PACKAGE_LIMIT_BYTES


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def validate(planned: Plan, job: Job, options: SubmitOptions) -> Submission:
    return plan_job(job, options, expected_snapshot(planned, job, options))


def fork(folder: Path, version: str) -> str:
    """A working directory with a verl of its own."""
    (folder / "fork" / "verl" / "version").mkdir(parents=True)
    (folder / "fork" / "verl" / "__init__.py").touch()
    (folder / "fork" / "verl" / "version" / "version").write_text(version)
    return str(folder / "fork")


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_fits_the_cluster_that_is_made_for_it(name: str, tmp_path: Path) -> None:
    job = recipes.load(name)
    options = SubmitOptions(working_dir=fork(tmp_path, job.verl) if job.verl and job.verl < "0.7" else None)
    cluster = Cluster.load({"name": "lab", **cluster_for_job(job, options)})
    plan = DstackProvider().plan(cluster)
    assert f"trainer.nnodes={job.nodes or 1}" in validate(plan, job, options).argv


class TestFields:
    def test_of_a_recipe(self) -> None:
        fields = cluster_for_job(recipes.load("ppo"), SubmitOptions())
        assert (fields["nodes"], fields["gpu"]) == (2, "80GB..:8")
        assert (fields["data"], fields["models"]) == (["gsm8k"], ["Qwen/Qwen2.5-7B-Instruct"])

    def test_what_is_asked_for_wins(self) -> None:
        options = SubmitOptions(model="Qwen/Qwen3-8B", data=("math", "owner/name"))
        fields = cluster_for_job(recipes.load("ppo"), options)
        assert (fields["data"], fields["models"]) == (["math", "owner/name"], ["Qwen/Qwen3-8B"])

    def test_what_lies_here_travels_with_the_job(self, tmp_path: Path) -> None:
        (tmp_path / "owner" / "name").mkdir(parents=True)
        options = SubmitOptions(model="./model", data=("owner/name", "./mine.parquet", "/data/theirs"))
        fields = cluster_for_job(recipes.load("ppo"), options)
        assert "data" not in fields
        assert "models" not in fields

    def test_a_job_that_does_not_say(self) -> None:
        assert cluster_for_job(Job(name="bare"), SubmitOptions()) == {"nodes": 1}


class TestBeforeThereIsACluster:
    def refused(self, cluster: Cluster, **options: Any) -> str:
        planned = DstackProvider().plan(cluster)
        with pytest.raises(InputError) as caught:
            validate(planned, recipes.load("grpo"), SubmitOptions(**options))
        return caught.value.message

    @pytest.mark.parametrize(
        ("declared", "options", "says"),
        [
            ({}, {"overrides": {"trainer.nnodes": 2}}, "cluster 'lab' has 1 node"),
            ({"data": ["math"]}, {}, "reads data set 'gsm8k'"),
            ({"rollout": "sglang"}, {}, "generates with vllm"),
            ({}, {"reward": "./reward.py"}, "reward.py"),
        ],
    )
    def test_what_cannot_work(self, declared: dict[str, Any], options: dict[str, Any], says: str) -> None:
        cluster = Cluster(**{"name": "lab", "gpu": "80GB:8", "data": ["gsm8k"], **declared})
        assert says in self.refused(cluster, **options)

    def test_a_number_of_gpus_that_is_left_open_counts_as_the_recipes(self) -> None:
        seen = expected_shape(
            DstackProvider().plan(Cluster(name="lab", gpu="80GB:4..8")), recipes.load("grpo")
        )
        assert seen.gpus_per_node == 8

    def test_where_a_run_goes_on_is_not_known_yet(self) -> None:
        job, options = recipes.load("grpo"), SubmitOptions(name="mine")
        planned = DstackProvider().plan(Cluster(name="lab", gpu="80GB:8", nodes=2, data=["gsm8k"]))
        notes = validate(planned, job, options).notes
        assert "from which step the run continues is seen once the cluster is up" in notes

    def test_a_data_set_with_a_description_goes_by_its_name(self) -> None:
        mine = DataSet(name="mine", source="owner/name", prompt_field="q", answer_field="a")
        seen = expected_shape(
            LocalProvider().plan(Cluster(name="lab", data=[mine])), recipes.load("grpo-tiny")
        )
        assert list(seen.data) == ["mine"]


class TestWhatIsBroughtAlong:
    """Refused before there is a cluster, as `prepare` would refuse it when there is one."""

    @staticmethod
    def validate(**options: Any) -> None:
        job, wished = recipes.load("grpo"), SubmitOptions(**options)
        cluster = Cluster.load({"name": "lab", **cluster_for_job(job, wished)})
        validate(DstackProvider().plan(cluster), job, wished)

    def test_python_that_verl_cannot_load(self, tmp_path: Path) -> None:
        (tmp_path / "reward.py").write_text("def other():\n    pass\n")
        with pytest.raises(InputError, match=r"reward.py defines no 'compute_score'"):
            self.validate(reward="./reward.py")
        (tmp_path / "reward.py").write_text("def compute_score(:\n")
        with pytest.raises(InputError, match="is not Python: line 1"):
            self.validate(reward="./reward.py")

    def test_a_working_directory_that_is_too_large(self, tmp_path: Path) -> None:
        folder = tmp_path / "project"
        folder.mkdir()
        with (folder / "large").open("wb") as file:
            file.truncate(PACKAGE_LIMIT_BYTES + 1)
        with pytest.raises(InputError, match="Ray takes at most"):
            self.validate(working_dir=str(folder))
