"""Whether the image and the shape of a cluster are what a recipe was made for."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from planning import cluster, plan

from cloudrl import recipes
from cloudrl.errors import InputError
from cloudrl.jobs import SubmitOptions
from cloudrl.jobs.compatibility import USUAL_QUEUE_UNITS
from cloudrl.spec import HydraText, Job
from cloudrl.verl.keys import QUEUE_UNITS

PATHS = {"train": "/d/train.parquet", "test": "/d/test.parquet"}


def notes(recipe: str, overrides: dict[str, HydraText] | None = None, **changes: Any) -> tuple[str, ...]:
    """What is said of a recipe on a cluster of two nodes with eight GPUs each, but for the changes."""
    job = recipes.load(recipe)
    view = cluster(data=dict.fromkeys(job.data, PATHS), models={str(job.model): "/m"}, **changes)
    return plan(job, view, SubmitOptions(overrides=overrides or {})).notes


def test_an_image_without_the_engine_is_refused() -> None:
    said = "generates with sglang, and the image of cluster 'lab' has vllm"
    with pytest.raises(InputError, match=said) as caught:
        notes("ppo-sglang-7b", rollouts=("vllm",))
    assert "--set rollout=sglang" in str(caught.value.hint)
    with pytest.raises(InputError, match=said):
        notes("ppo", {"actor_rollout_ref.rollout.name": HydraText("sglang")}, rollouts=("vllm",))


@pytest.mark.parametrize("rollouts", [("sglang",), ("vllm", "sglang"), ()])
def test_an_image_that_has_it_or_does_not_say(rollouts: tuple[str, ...]) -> None:
    assert notes("ppo-sglang-7b", rollouts=rollouts) == ()


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 8), (2, 4)])
def test_another_shape_is_said(nodes: int, gpus: int) -> None:
    [note] = notes("ppo", nodes=nodes, gpus_per_node=gpus)
    assert "made for 2 nodes with 8 GPUs" in note
    assert f"has {nodes} with {gpus}" in note
    assert notes("ppo", nodes=2, gpus_per_node=8) == ()


# -- replicas of the rollout -----------------------------------------------------------------------------------------

TP, DP, PP = (
    f"actor_rollout_ref.rollout.{name}_size"
    for name in ("tensor_model_parallel", "data_parallel", "pipeline_model_parallel")
)


@pytest.mark.parametrize(
    ("nodes", "gpus", "given", "message", "hint"),
    [
        (1, 1, {TP: 2}, f"{TP}=2: a replica of the rollout takes 2 GPUs, and 1 node with 1 GPU", 1),
        (2, 8, {TP: 32}, f"{TP}=32: a replica of the rollout takes 32 GPUs, and 2 nodes with 8 GPUs", 16),
        (2, 8, {TP: 3}, f"{TP}=3: a replica of the rollout takes 3 GPUs, and 2 nodes with 8 GPUs", 2),
        (2, 8, {TP: 8, DP: 4}, f"{TP}=8 and {DP}=4: a replica of the rollout takes 32 GPUs", 16),
        (2, 8, {TP: 1, PP: 3}, f"{PP}=3: a replica of the rollout takes 3 GPUs", 2),
        (2, 8, {TP: 4, "trainer.nnodes": 1, "trainer.n_gpus_per_node": 2}, "takes 4 GPUs, and 1 node with 2 GPUs", 2),
    ],
)  # fmt: skip
def test_replicas_that_do_not_fit_are_refused(
    nodes: int, gpus: int, given: dict[str, Any], message: str, hint: int
) -> None:
    overrides = {key: HydraText(str(value)) for key, value in given.items()}
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        notes("ppo", overrides, nodes=nodes, gpus_per_node=gpus)
    assert caught.value.message.endswith("cannot be divided into replicas of that size")
    assert caught.value.hint == f"For example {TP}={hint}"


@pytest.mark.parametrize(
    "given",
    [
        {TP: 16},  # over both nodes
        {TP: 2, DP: 8},
        {TP: "${oc.env:TP}"},  # known on the nodes
        {TP: 3, "actor_rollout_ref.rollout.nnodes": 1},  # on GPUs of its own
        {TP: 3, "actor_rollout_ref.rollout.disaggregation.enabled": True},
        {TP: 3, "trainer.nnodes": "${oc.env:N}"},
    ],
)
def test_replicas_that_fit_or_are_not_for_us_to_judge(given: dict[str, Any]) -> None:
    found = notes("ppo", {key: HydraText(str(value)) for key, value in given.items()})
    assert [each for each in found if "from the environment of the nodes" not in each] == []


def test_a_recipe_for_more_gpus_than_the_cluster_has_is_refused_where_it_cannot_work() -> None:
    with pytest.raises(
        InputError, match=r"takes 4 GPUs, and 1 node with 2 GPUs cannot be divided into replicas of that size"
    ):
        notes("grpo-qwen3-32b", nodes=1, gpus_per_node=2)


# -- CPUs for the queue and for the workers --------------------------------------------------------------------------


def queue_units(cpus: int | None, overrides: dict[str, Any] | None = None, **changes: Any) -> str | None:
    """What a job sets of its own accord, or is told to."""
    job = recipes.load("ppo").replace(verl=None, **changes.pop("job", {}))
    view = cluster(cpus_per_node=cpus, models={str(job.model): "/m"}, **changes)
    argv = plan(job, view, SubmitOptions(overrides=overrides or {}, unchecked=True)).argv
    return dict(word.split("=", 1) for word in argv if "=" in word).get(QUEUE_UNITS)


@pytest.mark.parametrize(
    ("nodes", "gpus", "cpus", "units"),
    [
        (2, 8, 29, None),  # 24 for the workers, 4 units, and the controller on either node
        (2, 8, 28, "6"),
        (2, 8, 26, "2"),
        (3, 8, 28, None),
        (1, 8, 33, None),
        (1, 8, 32, "7"),
        (1, 1, 8, "4"),
        (2, 8, None, None),
    ],
)
def test_the_queue_gets_as_many_units_as_leave_the_workers_their_cpus(
    nodes: int, gpus: int, cpus: int | None, units: str | None
) -> None:
    assert queue_units(cpus, nodes=nodes, gpus_per_node=gpus) == units


@pytest.mark.parametrize(
    ("cpus", "units", "hint"),
    [(28, 8, f"{QUEUE_UNITS}=6, or leave it out"), (25, None, "--set cpu=26.."), (24, 1, "trainer.use_v1=False")],
)
def test_too_few_cpus_for_the_queue_are_refused(cpus: int, units: int | None, hint: str) -> None:
    with pytest.raises(InputError, match=f"{cpus} CPUs a node are too few for verl") as caught:
        queue_units(cpus, {QUEUE_UNITS: units} if units else {})
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("overrides", "changes"),
    [
        ({"trainer.use_v1": False}, {}),
        ({"transfer_queue.backend.storage_backend": "MooncakeStore"}, {}),
        ({"trainer.nnodes": 1}, {}),  # the other node may have the queue
        ({}, {"verl_version": "0.8.0"}),
        ({}, {"job": {"entrypoint": ["python3", "-m", "my.trainer"]}}),
    ],
)
def test_where_there_is_no_such_queue_nothing_is_said(overrides: dict[str, Any], changes: dict[str, Any]) -> None:
    assert queue_units(24, overrides, **changes) is None


def test_the_usual_number_of_units_is_the_installed_verls() -> None:
    config = Path(str(find_spec("verl").origin)).parent / "trainer/config/transfer_queue/transfer_queue.yaml"
    assert yaml.safe_load(config.read_text())["backend"]["SimpleStorage"]["num_data_storage_units"] == USUAL_QUEUE_UNITS


# -- the release that runs -------------------------------------------------------------------------------------------


def keys_of(job: Job, release: str | None) -> set[str]:
    view = cluster(device=job.device, verl_version=release, models={str(job.model): "/m"})
    words = plan(job, view, SubmitOptions()).argv
    return {word.partition("=")[0] for word in words} & {"trainer.nnodes", "trainer.resume_mode", "trainer.device"}


@pytest.mark.parametrize(
    ("release", "lacks"),
    [
        ("0.1", {"trainer.resume_mode", "trainer.device"}),
        ("0.2.0.post2", {"trainer.device"}),
        ("0.3.0.post1", {"trainer.device"}),
        ("0.4.0", set()),
        ("0.9.1", set()),
        (None, set()),
    ],
)
def test_a_key_is_filled_in_where_verl_has_it(release: str | None, lacks: set[str]) -> None:
    job = recipes.load("ppo").replace(verl=None, device="cpu", gpu=None)
    assert keys_of(job, release) == {"trainer.nnodes", "trainer.resume_mode", "trainer.device"} - lacks


def test_the_release_of_a_fork_of_unknown_number_is_the_recipes() -> None:
    assert "trainer.resume_mode" not in keys_of(recipes.load("ppo").replace(verl="0.1"), None)


# -- who scores the rows ---------------------------------------------------------------------------------------------


def test_rows_for_search_r1s_fork_are_refused_with_any_other_verl() -> None:
    with pytest.raises(InputError, match="verl itself has no reward function for its data source 'nq'") as caught:
        plan(recipes.load("grpo").replace(data=["nq_search"]), cluster(data={"nq_search": PATHS}), SubmitOptions())
    assert "--data nq_search_tool" in str(caught.value.hint)


def test_rows_of_ours_need_the_reward_function_that_we_have() -> None:
    job = recipes.load("grpo").replace(data=["addition"])
    with pytest.raises(InputError, match="verl has no reward function for data set 'addition'") as caught:
        plan(job, cluster(data={"addition": PATHS}), SubmitOptions())
    assert caught.value.hint == "cloudrl has one: reward.custom_reward_function.path=pkg://cloudrl.verl_cpu.reward"


def test_a_program_of_ones_own_scores_as_it_likes() -> None:
    job = recipes.load("grpo").replace(data=["addition"], entrypoint=["python3", "mine.py"])
    assert plan(job, cluster(data={"addition": PATHS}, nodes=1), SubmitOptions())


@pytest.mark.parametrize(
    ("data", "overrides"),
    [
        ("nq_search_tool", {}),
        ("addition", {"reward.custom_reward_function.path": "pkg://cloudrl.verl_cpu.reward"}),
        ("nq_search", {"reward.custom_reward_function.path": "/shared/reward.py"}),
        ("nq_search", {"custom_reward_function.path": "/shared/reward.py"}),
        ("mine", {}),
    ],
)
def test_rows_that_verl_or_the_job_scores(data: str, overrides: dict[str, Any]) -> None:
    job = recipes.load("grpo").replace(data=[data])
    assert plan(job, cluster(data={data: PATHS}, nodes=1), SubmitOptions(overrides=overrides)).notes == ()
