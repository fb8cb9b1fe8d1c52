"""The cluster that a job needs, and whether the two go together."""

from pathlib import Path
from typing import Any

import pytest

from cloudrl import recipes
from cloudrl.errors import InputError
from cloudrl.jobs import Submission, SubmitOptions, plan_job
from cloudrl.jobs.run_plan import cluster_for_job, expected_facts, expected_snapshot
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
    is_fork = bool(job.verl and job.verl < "0.7")
    options = SubmitOptions(working_dir=fork(tmp_path, job.verl) if is_fork else None)
    cluster = Cluster.load({"name": "lab", **cluster_for_job(job, options)})
    if is_fork:  # whose own server, or ours, its user chooses
        with pytest.raises(InputError, match="cluster 'lab' has no services"):
            validate(DstackProvider().plan(cluster), job, options)
        cluster = Cluster.load({"services": ["search:wiki-18"], "name": "lab", **cluster_for_job(job, options)})
    plan = DstackProvider().plan(cluster)
    trains = job.override("trainer.nnodes") or job.nodes or 1  # the others generate
    assert f"trainer.nnodes={trains}" in validate(plan, job, options).argv


@pytest.mark.parametrize(
    ("options", "data", "models"),
    [
        ({}, ["gsm8k"], ["Qwen/Qwen2.5-7B-Instruct"]),
        ({"model": "Qwen/Qwen3-8B", "data": ("math", "owner/name")}, ["math", "owner/name"], ["Qwen/Qwen3-8B"]),
        ({"model": "./model", "data": ("owner/here", "./mine.parquet", "/data/theirs")}, None, None),
    ],
)
def test_the_cluster_prepares_what_does_not_travel_with_the_job(
    tmp_path: Path, options: dict[str, Any], data: list[str] | None, models: list[str] | None
) -> None:
    (tmp_path / "owner" / "here").mkdir(parents=True)
    fields = cluster_for_job(recipes.load("ppo"), SubmitOptions(**options))
    assert (fields["nodes"], fields["gpu"]) == (2, "80GB..:8")
    assert (fields.get("data"), fields.get("models")) == (data, models)


def test_a_job_that_does_not_say() -> None:
    assert cluster_for_job(Job(name="bare"), SubmitOptions()) == {"nodes": 1}


@pytest.mark.parametrize(
    ("declared", "options", "reward", "says"),
    [
        ({}, {"overrides": {"trainer.nnodes": 2}}, "", "cluster 'lab' has 1 node"),
        ({"data": ["math"]}, {}, "", "reads data set 'gsm8k'"),
        ({"rollout": "sglang"}, {}, "", "generates with vllm"),
        ({}, {"reward": "./rewards.py"}, "", "rewards.py does not exist"),
        ({}, {"reward": "./reward.py"}, "def other():\n    pass\n", "reward.py defines no 'compute_score'"),
        ({}, {"reward": "./reward.py"}, "def compute_score(:\n", "is not Python: line 1"),
        ({}, {"working_dir": "project"}, "", "Ray takes at most"),
    ],
)
def test_what_cannot_work_is_refused_before_there_is_a_cluster(
    tmp_path: Path, declared: dict[str, Any], options: dict[str, Any], reward: str, says: str
) -> None:
    (tmp_path / "reward.py").write_text(reward)
    (tmp_path / "project").mkdir()
    with (tmp_path / "project" / "large").open("wb") as file:
        file.truncate(PACKAGE_LIMIT_BYTES + 1)
    cluster = Cluster(**{"name": "lab", "gpu": "80GB:8", "data": ["gsm8k"], **declared})
    with pytest.raises(InputError, match=says):
        validate(DstackProvider().plan(cluster), recipes.load("grpo"), SubmitOptions(**options))


def test_a_number_of_gpus_that_is_left_open_counts_as_the_recipes() -> None:
    planned = DstackProvider().plan(Cluster(name="lab", gpu="80GB:4..8"))
    assert expected_facts(planned, recipes.load("grpo")).gpus_per_node == 8


def test_variables_of_the_cluster_are_those_of_its_jobs() -> None:
    planned = DstackProvider().plan(Cluster(name="lab", gpu="80GB:8", env={"A": "1"}, secrets=["WANDB_API_KEY"]))
    assert expected_facts(planned, recipes.load("grpo")).variables == ("A", "WANDB_API_KEY")


def test_where_a_run_goes_on_is_not_known_before_there_is_a_cluster() -> None:
    planned = DstackProvider().plan(Cluster(name="lab", gpu="80GB:8", nodes=2, data=["gsm8k"]))
    notes = validate(planned, recipes.load("grpo"), SubmitOptions(name="mine")).notes
    said = [note for note in notes if "continues from" in note]
    assert said == ["the step that the run continues from is known once the cluster is up"]


def test_a_data_set_with_a_description_goes_by_its_name() -> None:
    mine = DataSet(name="mine", source="owner/name", prompt_field="q", answer_field="a")
    planned = LocalProvider().plan(Cluster(name="lab", data=[mine]))
    assert list(expected_facts(planned, recipes.load("grpo-tiny")).data) == ["mine"]
