"""What verl's trainer modes need, waste and lose."""

from __future__ import annotations

import re

import pytest

from cloudrl.verl.composition import compose
from cloudrl.verl.keys import ROLLOUT
from cloudrl.verl.memory.reading import workload_of
from cloudrl.verl.modes import idle_gpus, problems_of_mode, warnings_of_mode, warnings_of_steps
from cloudrl.verl.pool_sizes import pool_of_its_own, smaller_training
from cloudrl.verl.releases import RELEASE
from cloudrl.verl.rules import problems
from cloudrl.verl.setting import SAMPLER, Setting

MODE, BACKEND = "trainer.v1.trainer_mode", f"{ROLLOUT}.checkpoint_engine.backend"
SWITCH = "trainer.v1.separate_async.hybrid_rollout"
SEPARATE = (
    f"{MODE}=separate_async", "trainer.nnodes=1", f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=8",
    f"{BACKEND}=nccl",
)  # fmt: skip


def setting(*overrides: str, gpus: int = 16) -> Setting:
    words = ("trainer.nnodes=2", "trainer.n_gpus_per_node=8", f"{ROLLOUT}.name=vllm", *overrides)
    values = compose(RELEASE.verl, words).values
    assert values is not None
    return Setting(values, gpus)


@pytest.mark.parametrize(
    ("overrides", "variables", "on_cpu", "hints"),
    [
        ((), {}, False, []),
        (SEPARATE, {}, False, []),
        ((*SEPARATE, f"{BACKEND}=hccl", f"{ROLLOUT}.checkpoint_engine.custom_backend_module=my.engine"), {}, False, []),
        (SEPARATE, {}, True, [
            f"{BACKEND}=gloo {ROLLOUT}.checkpoint_engine.custom_backend_module=cloudrl.verl_cpu.checkpoint_engine"]),
        ((*SEPARATE, f"{BACKEND}=mooncake", "actor_rollout_ref.model.lora_rank=8"), {}, False,
         ["actor_rollout_ref.model.lora.merge=True"]),
        ((*SEPARATE, "actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.lora.merge=True"), {}, False, []),
        ((*SEPARATE, f"{ROLLOUT}.n_gpus_per_node=2", f"{ROLLOUT}.tensor_model_parallel_size=4"), {}, False,
         [f"{ROLLOUT}.tensor_model_parallel_size=2"]),
        ((*SEPARATE, "trainer.n_gpus_per_node=6", f"{ROLLOUT}.tensor_model_parallel_size=4"), {}, False,
         [f"{ROLLOUT}.tensor_model_parallel_size=2"]),
        ((*SEPARATE, "actor_rollout_ref.hybrid_engine=False"), {}, False, ["actor_rollout_ref.hybrid_engine=True"]),
        ((*SEPARATE, "actor_rollout_ref.hybrid_engine=False"), {"VERL_LOGGING_LEVEL": "warn"}, False, []),
        ((f"{BACKEND}=hccl",), {}, True, []),
        ((*SEPARATE, f"{SWITCH}.enable_switch=True"), {}, False, []),
    ],
)  # fmt: skip
def test_what_ends_an_asynchronous_job(overrides, variables, on_cpu, hints) -> None:
    found = problems_of_mode(setting(*overrides), variables, on_cpu=on_cpu)
    assert [problem.hint.partition("\n")[0] for problem in found] == hints


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ((), []),
        ((f"{MODE}=colocate_async",), []),
        (SEPARATE, ["imports cupy"]),
        ((*SEPARATE, f"{BACKEND}=mooncake", f"{ROLLOUT}.n_gpus_per_node=5",
          f"{ROLLOUT}.tensor_model_parallel_size=2"), ["1 of 5 GPUs of the rollout stay idle"]),
        (("actor_rollout_ref.hybrid_engine=False",), ["is made for trainer.v1.trainer_mode=separate_async"]),
        ((f"{MODE}=colocate_async", f"{SAMPLER}=mine.py"), ["takes the place of ReplayBufferAsync"]),
        ((f"{MODE}=colocate_async", f"{SAMPLER}=pkg://cloudrl.verl_cpu.replay"), []),
        ((f"{SAMPLER}=mine.py",), []),
        ((f"{MODE}=colocate_async", "trainer.v1.sampler.max_off_policy_threshold=1"), ["max_off_policy_threshold=3"]),
    ],
)  # fmt: skip
def test_what_an_asynchronous_job_wastes(overrides, said) -> None:
    found = list(warnings_of_mode(setting(*overrides)))
    assert len(found) == len(said), found
    assert all(words in text for words, text in zip(said, found, strict=True)), found


@pytest.mark.parametrize(
    ("overrides", "idle"),
    [
        ((), 0),
        (("trainer.nnodes=1",), 8),
        (("trainer.n_gpus_per_node=4",), 8),
        (SEPARATE, 0),
        (("trainer.nnodes=1", "reward.reward_model.enable_resource_pool=True", "reward.reward_model.nnodes=1",
          "reward.reward_model.n_gpus_per_node=4"), 4),
    ],
)  # fmt: skip
def test_gpus_that_no_part_of_the_job_takes(overrides, idle) -> None:
    assert idle_gpus(setting(*overrides)) == idle


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("trainer.save_freq=-1", "never saves"),
        ("trainer.total_training_steps=0", "without a step of training"),
        ("trainer.total_epochs=0", "without a step of training"),
        ("trainer.total_epochs=-1", "without a step of training"),
    ],
)
def test_a_run_that_trains_or_keeps_nothing(override: str, said: str) -> None:
    [text] = warnings_of_steps(setting("trainer.save_freq=5", override))
    assert said in text
    meant = re.findall(r"trainer\.\w+=\w+", text)[-1]
    assert list(warnings_of_steps(setting("trainer.save_freq=5", meant))) == []


@pytest.mark.parametrize("shape", [(2, 8), (3, 8), (1, 8), (1, 2)])
def test_pools_are_settled_at_once(shape: tuple[int, int]) -> None:
    nodes, gpus = shape
    words = (f"trainer.nnodes={nodes}", f"trainer.n_gpus_per_node={gpus}", f"{MODE}=separate_async",
             f"{BACKEND}=nccl", f"{ROLLOUT}.tensor_model_parallel_size=1")  # fmt: skip
    hint = pool_of_its_own(setting(*words, gpus=nodes * gpus), ROLLOUT)
    after = setting(*words, *hint.split(), gpus=nodes * gpus)
    assert [each.text for each in problems(after) if "GPUs" in each.text] == []
    assert idle_gpus(after) == 0


def test_training_leaves_room_for_the_others() -> None:
    assert smaller_training(setting(), 8) == "trainer.nnodes=1"
    assert smaller_training(setting("trainer.nnodes=1", gpus=8), 3) == "trainer.n_gpus_per_node=5"
    assert smaller_training(setting(), 16).endswith("--nodes 4")
    assert pool_of_its_own(setting("trainer.nnodes=1", "trainer.n_gpus_per_node=1", gpus=1), ROLLOUT) == ""
    assert pool_of_its_own(setting("trainer.nnodes=1"), ROLLOUT).split() == [
        f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=8"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "copies"),
    [
        ((), 0),
        (SEPARATE, 2),
        ((*SEPARATE, "trainer.v1.separate_async.parameter_sync_step=1"), 1),
        ((*SEPARATE, "algorithm.rollout_correction.bypass_mode=True"), 0),
    ],
)
def test_the_policies_that_a_step_keeps_in_host_memory(overrides: tuple[str, ...], copies: int) -> None:
    assert workload_of(setting(*overrides)).policy_copies == copies
