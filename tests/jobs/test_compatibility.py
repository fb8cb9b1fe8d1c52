"""Whether the image and the shape of a cluster are what a recipe was made for."""

from typing import Any

import pytest
from planning import PATHS, cluster, notes, plan

from cloudrl import recipes
from cloudrl.errors import InputError
from cloudrl.jobs import SubmitOptions
from cloudrl.spec import HydraText, Job


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
    assert "tuned for 2 nodes with 8 GPUs" in note
    assert f"has {nodes} with {gpus}" in note
    assert notes("ppo", nodes=2, gpus_per_node=8) == ()


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
    assert (
        caught.value.hint
        == "Use the one that comes with cloudrl: reward.custom_reward_function.path=pkg://cloudrl.verl_cpu.reward"
    )


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
