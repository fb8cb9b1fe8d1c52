"""All reasons in one round, and a set of overrides that passes the same checks."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from planning import PATHS, cluster, plan, typed

from cloudrl import recipes
from cloudrl.jobs import SubmitOptions
from cloudrl.jobs.findings import JobRefused, with_fix
from cloudrl.spec import Job

SLOW = 400
"""Faulty jobs of `make test-slow`."""
FEW = 12
ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
OVERLONG = "reward.reward_kwargs.overlong_buffer_cfg"
FAULTS: tuple[tuple[str, ...], ...] = (
    ("data.train_batch_size={n}",),
    (f"{ACTOR}.ppo_mini_batch_size={{n}}",),
    (f"{ACTOR}.use_dynamic_bsz=False",),
    (f"{ACTOR}.use_dynamic_bsz=False", f"{ACTOR}.ppo_micro_batch_size_per_gpu={{n}}"),
    (f"{ROLLOUT}.log_prob_use_dynamic_bsz=False", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu={{n}}"),
    (f"{ROLLOUT}.tensor_model_parallel_size={{few}}",),
    (f"{ROLLOUT}.n={{few}}",),
    (f"{ROLLOUT}.n_val={{few}}",),
    (f"{ACTOR}.fsdp_config.grad_offload=True",),
    (f"+{ROLLOUT}.val_kwargs.n={{few}}",),
    ("trainer.nnodes={few}",),
    ("trainer.n_gpus_per_node={n}",),
    ("trainer.nnode=1",),
    ("trainer.default_local_dir=mine/ckpt",),
    ("algorithm.adv_estimator=grpoo",),
    ("algorithm.mine.enable=True",),
    ("trainer.logger=[console",),
    ("model_engine=megatron",),
    ("critic.model.fsdp_config.param_offload=True",),
    ("ray_init.num_cpus={n}",),
    (f"{ROLLOUT}.mode=sync",),
    ("trainer.resume_mode=resume", "trainer.resume_from_path=null"),
    ("trainer.v1.trainer_mode=separate_async",),
    ("lora_rank={n}",),
    (f"{ACTOR}.policy_loss=gspo",),
    (f"+{ROLLOUT}.n_val=4",),
    (f"+{ACTOR}.my_own=1",),
    ("data.apply_chat_template_kwargs=True",),
    (f"{ROLLOUT}.gpu_memory_utilization=80",),
    ("+trainer.val_only=False",),
    ("max_turns={few}",),
    (f"+{ACTOR}.clip_ratio_hihg=0.3",),
    (f"+{REF}.tau_pos_=1.0",),
    (f"{ACTOR}.fsdp_config.fsdp_size={{n}}",),
    (f"{ACTOR}.optim=linear",),
    (f"{ROLLOUT}.val_kwargs=null",),
    (f"{ACTOR}.policy_loss=[1]",),
    ("reward.reward_manager.name=dapo", f"+{OVERLONG}.enable=True", f"+{OVERLONG}.len={{n}}"),
)


def shape(nodes: int, gpus: int, job: Job) -> Any:
    return cluster(nodes=nodes, gpus_per_node=gpus, data=dict.fromkeys(job.data, PATHS), models={str(job.model): "/m"})


def refused(job: Job, view: Any, overrides: dict[str, Any], **options: Any) -> JobRefused | None:
    try:
        plan(job, view, SubmitOptions(overrides=overrides, **options))
    except JobRefused as refusal:
        return refusal
    return None


def faulty(seed: int) -> tuple[Job, Any, dict[str, Any]]:
    """A recipe on a cluster, with one to five faults."""
    dice = random.Random(seed)
    job = recipes.load(dice.choice(["grpo", "ppo", "grpo-qwen3-32b"]))
    words = [
        word.format(n=dice.choice([1, 3, 7, 20, 48, 100, 250, 1000]), few=dice.choice([1, 2, 3, 5, 9]))
        for fault in dice.sample(FAULTS, dice.randint(1, 5))
        for word in fault
    ]
    return job, shape(dice.choice([1, 2, 3]), dice.choice([4, 8]), job), typed(*words)


def check_corrections(seed: int, *, of_recipe: bool = False) -> None:
    job, view, overrides = faulty(seed)
    if of_recipe:
        job, overrides = job.with_overrides(overrides), {}
    refusal = refused(job, view, overrides)
    if refusal is None:
        return
    corrected = with_fix(job, overrides, refusal.fix)
    again = refused(job, view, corrected)
    texts = set() if again is None else {finding.text for finding in again.findings}
    assert texts == {finding.text for finding in refusal.rest}, (seed, overrides, refusal.fix)
    for finding in refusal.rest:
        assert finding.fix == (), f"{seed}: a hint was left: {finding}, {overrides}"
    for finding in refusal.findings:  # each hint by itself removes what it is for
        alone = refused(job, view, with_fix(job, overrides, finding.fix)) if finding.fix else None
        left = [] if alone is None else [each.text for each in alone.findings]
        assert finding.text not in left, f"{seed}: {finding}, {overrides}"


@pytest.mark.parametrize("seed", range(FEW))
def test_hints_are_applied_and_pass(seed: int) -> None:
    check_corrections(seed)


@pytest.mark.parametrize("seed", range(FEW // 2))
def test_hints_for_faults_of_a_script_are_applied_and_pass(seed: int) -> None:
    check_corrections(seed, of_recipe=True)


@pytest.mark.parametrize(
    ("faults", "fix"),
    [
        (("+trainer.val_only=False",), ("++trainer.val_only=False",)),
        (("max_turns=3",), ("~max_turns",)),
        (
            (*(f"{ACTOR}.megatron.{each}=False" for each in ("param_offload", "grad_offload", "optimizer_offload")),
             f"{ACTOR}.megatron.tensor_model_parallel_size=2"),
            ("model_engine=megatron", f"~{ACTOR}.megatron.grad_offload"),
        ),
        ((f"{ACTOR}.model_engine=megatron",), (f"~{ACTOR}.model_engine", "model_engine=megatron")),
    ],
)  # fmt: skip
def test_keys_of_a_script_are_corrected_from_the_command_line(faults: tuple[str, ...], fix: tuple[str, ...]) -> None:
    job = recipes.load("grpo").with_overrides(typed(*faults))
    refusal = refused(job, shape(1, 8, job), {})
    assert refusal is not None
    assert (refusal.fix, refusal.findings[0].owner) == (fix, "recipe 'grpo'")
    assert refusal.rest == ()
    assert refused(job, shape(1, 8, job), typed(*refusal.fix)) is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FEW, SLOW))
def test_hints_of_many_faulty_jobs_are_applied_and_pass(seed: int) -> None:
    check_corrections(seed)


def test_faults_of_all_stages_come_together(tmp_path: Path) -> None:
    job = recipes.load("grpo")
    words = typed(
        "trainer.nnodes=5", "trainer.default_local_dir=out/x", "data.train_batchsize=100", "trainer.nnode=3",
        "algorithm.adv_estimator=grppo", f"{ACTOR}.ppo_mini_batch_size=50", "+trainer.val_before_train=False",
        "data.train_files=./gone.parquet", "data.val_files=./gone.parquet",
    )  # fmt: skip
    refusal = refused(job, shape(3, 8, job), words, name="a b", reward="./none.py")
    assert refusal is not None
    text = refusal.message
    for said in (
        "--name 'a b'", "gone.parquet does not exist", "none.py does not exist", "trainer.nnodes=5, but cluster",
        "trainer.default_local_dir=out/x is relative", "data.train_batchsize: verl 0.9.1 has no such key",
        "takes no +", "adv_estimator=grppo: verl has none of that name", "ppo_mini_batch_size=50",
    ):  # fmt: skip
        assert said in text, text
    assert {finding.text.partition(" ")[0] for finding in refusal.rest} == {
        "--name", "data.train_files=./gone.parquet:",  # a missing file counts once
        "reward.custom_reward_function.path=./none.py:",
    }  # fmt: skip


def test_an_added_key_and_a_value_for_a_section_are_replaced() -> None:
    job = recipes.load("grpo")
    words = typed(
        f"{ACTOR}.policy_loss=gspo", f"+{ROLLOUT}.n_val=4", f"+{ACTOR}.my_own=1", f"+{ACTOR}.load_weight=True"
    )
    refusal = refused(job, shape(1, 8, job), words)
    assert refusal is not None
    assert (refusal.rest, with_fix(job, words, refusal.fix)) == ((), {
        f"{ACTOR}.policy_loss.loss_mode": "gspo", f"{ROLLOUT}.val_kwargs.n": "4",
    })  # fmt: skip


def test_what_is_suggested_is_one_set_near_what_was_asked_for() -> None:
    job = recipes.load("grpo-qwen3-32b")
    refusal = refused(job, shape(3, 8, job), {})
    assert refusal is not None
    assert refusal.rest == ()
    values = dict(word.split("=") for word in refusal.fix)
    batch, mini = int(values["data.train_batch_size"]), int(values[f"{ACTOR}.ppo_mini_batch_size"])
    assert (batch, mini) == (960, 120)
    assert all("(set by recipe 'grpo-qwen3-32b')" in finding.sentence for finding in refusal.findings)


def test_a_key_of_the_recipe_is_taken_out_from_the_command_line() -> None:
    job = recipes.load("grpo").with_overrides({f"{ACTOR}.fsdp_config.grad_offload": False})
    refusal = refused(job, shape(1, 8, job), {})
    assert refusal is not None
    assert refusal.fix == (f"~{ACTOR}.fsdp_config.grad_offload",)
    assert refusal.message.endswith("leave it out (set by recipe 'grpo')")
    assert refused(job, shape(1, 8, job), typed(*refusal.fix)) is None


@pytest.mark.parametrize("engine", ["megatron", "dp", "veomni", "torchtitan"])
def test_a_recipe_moves_to_another_engine(engine: str) -> None:
    job = recipes.load("grpo")
    submission = plan(job, shape(1, 8, job), SubmitOptions(overrides=typed(f"model_engine={engine}")))
    assert f"model_engine={engine}" in submission.argv
    has_own = any(".fsdp_config." in word for word in submission.argv)
    assert has_own == (engine == "dp")
    assert any(note.startswith(f"model_engine={engine} leaves out") for note in submission.notes) == (engine != "dp")
