"""What cannot work in verl's configuration, and that verl itself says the same."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudrl.verl import rules
from cloudrl.verl.composition import Problem, compose
from cloudrl.verl.releases import RELEASE
from cloudrl.verl.setting import Setting
from cloudrl.verl_cpu.tiny_model import make_tiny_model

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
WORKS = {
    "trainer.nnodes": 2, "trainer.n_gpus_per_node": 8, "data.train_batch_size": 256, f"{ROLLOUT}.n": 4,
    f"{ROLLOUT}.name": "vllm", f"{ACTOR}.ppo_mini_batch_size": 64, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4,
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 8, f"{REF}.log_prob_micro_batch_size_per_gpu": 8,
    "critic.ppo_micro_batch_size_per_gpu": 4, f"{ROLLOUT}.tensor_model_parallel_size": 2,
}  # fmt: skip
"""On two nodes of eight GPUs."""


def words(changes: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"{key}={value}" for key, value in {**WORKS, **changes}.items())


def problems(changes: dict[str, Any], gpus: int = 16) -> tuple[Problem, ...]:
    composed = compose(RELEASE.verl, words(changes))
    assert composed.values is not None, composed.problems
    return rules.problems(composed.values, gpus)


def test_what_works_has_no_problem() -> None:
    assert problems({}) == ()
    assert problems({f"{ACTOR}.use_dynamic_bsz": True}) == ()
    assert problems({"algorithm.adv_estimator": "grpo", f"{ACTOR}.use_kl_loss": True}) == ()


@pytest.mark.parametrize(
    ("changes", "text", "hint"),
    [
        ({"algorithm.adv_estimator": "grop"}, "algorithm.adv_estimator=grop: verl knows gae, grpo, ",
         "algorithm.adv_estimator=grpo"),
        ({f"{ACTOR}.policy_loss.loss_mode": "gsp"}, "loss_mode=gsp: verl knows vanilla", "loss_mode=gspo"),
        ({f"{ACTOR}.loss_agg_mode": "token"}, "loss_agg_mode=token: verl knows token-mean", ""),
        ({"trainer.v1.trainer_mode": "async"}, "trainer_mode=async: verl knows sync", ""),
        ({"data.train_batch_size": 250, f"{ROLLOUT}.n": 1},
         "data.train_batch_size=250 with 1 answers a prompt cannot be divided by 16", "data.train_batch_size=240"),
        ({f"{ACTOR}.ppo_micro_batch_size_per_gpu": "null"}, f"{ACTOR}.ppo_micro_batch_size_per_gpu is not set", "=8"),
        ({f"{ACTOR}.ppo_micro_batch_size": 64}, "ppo_micro_batch_size=64 and", "ppo_micro_batch_size=null"),
        ({f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": "null"}, f"{ROLLOUT}.log_prob_micro_batch_size", "=8"),
        ({f"{REF}.log_prob_micro_batch_size_per_gpu": "null", f"{ACTOR}.use_kl_loss": True}, f"{REF}.log_prob", "=8"),
        ({f"{ACTOR}.ppo_mini_batch_size": 512, "critic.ppo_mini_batch_size": 64},
         "ppo_mini_batch_size=512 is more than data.train_batch_size=256", "ppo_mini_batch_size=256"),
        ({f"{ACTOR}.ppo_mini_batch_size": 62, f"{ROLLOUT}.n": 1, "critic.enable": False},
         "ppo_mini_batch_size=62 with 1 answers a prompt cannot be divided over 16 data-parallel ranks",
         "ppo_mini_batch_size=48"),
        ({f"{ACTOR}.ppo_micro_batch_size_per_gpu": 3},
         "16 answers an update and rank cannot be divided by actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=3",
         "ppo_micro_batch_size_per_gpu=2"),
        ({"critic.ppo_micro_batch_size_per_gpu": 5}, "critic.ppo_micro_batch_size_per_gpu=5", "per_gpu=4"),
        ({f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 7},
         "64 answers a step and rank cannot be divided by actor_rollout_ref.rollout.log_prob_micro", "per_gpu=4"),
        ({f"{ACTOR}.use_dynamic_bsz": True, f"{ROLLOUT}.log_prob_use_dynamic_bsz": False}, "differ",
         f"{ROLLOUT}.log_prob_use_dynamic_bsz=True"),
        ({f"{ACTOR}.ulysses_sequence_parallel_size": 3, f"{ACTOR}.use_dynamic_bsz": True},
         "16 GPUs cannot be divided by actor_rollout_ref.actor.ulysses_sequence_parallel_size=3", ""),
        ({f"{ACTOR}.ulysses_sequence_parallel_size": 2, "actor_rollout_ref.model.use_remove_padding": False},
         "=2 needs actor_rollout_ref.model.use_remove_padding", "use_remove_padding=True"),
        ({f"{ACTOR}.fsdp_config.fsdp_size": 6}, "16 GPUs cannot be divided by", ""),
        ({f"{ROLLOUT}.mode": "sync"}, f"{ROLLOUT}.mode=sync is gone", f"{ROLLOUT}.mode=async"),
        ({f"{ROLLOUT}.expert_parallel_size": 4}, "expert_parallel_size=4 is not tensor times", "parallel_size=2"),
        ({f"{ROLLOUT}.pipeline_model_parallel_size": 2}, "verl has none with vllm", "parallel_size=1"),
        ({f"{ROLLOUT}.tensor_model_parallel_size": 12}, "takes 12 GPUs, which is no number of whole nodes with 8", ""),
        ({f"{ROLLOUT}.val_kwargs.do_sample": True, f"{ROLLOUT}.temperature": 0}, "needs a temperature", "=False"),
        ({"actor_rollout_ref.model.lora_rank": 600}, "LoRA of rank 600: vLLM takes 512 at most", ""),
        ({"reward.reward_model.enable_resource_pool": True}, "the reward model has GPUs of its own", "nnodes=1"),
        ({"reward.reward_model.enable_resource_pool": True, "reward.reward_model.nnodes": 1},
         "24 GPUs are needed (16 for training, 8 for the reward model), and the cluster has 16", "trainer.nnodes"),
        ({"trainer.v1.trainer_mode": "separate_async", f"{ROLLOUT}.nnodes": 1, "trainer.nnodes": 1,
          f"{ROLLOUT}.checkpoint_engine.backend": "nccl", "data.train_batch_size": 128},
         "data.train_batch_size=128 is not parameter_sync_step times ppo_mini_batch_size (4 x 64)",
         "data.train_batch_size=256"),
        ({"trainer.v1.trainer_mode": "separate_async", f"{ROLLOUT}.nnodes": 1, "trainer.nnodes": 1},
         "naive cannot reach GPUs of another pool", "=nccl"),
        ({"algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": "null"},
         "algorithm.filter_groups.enable needs a metric", "metric=acc"),
        ({"trainer.resume_mode": "resume_path", "trainer.resume_from_path": "/c/run"}, "names no step", "global_step_"),
    ],
)  # fmt: skip
def test_what_cannot_work(changes: dict[str, Any], text: str, hint: str) -> None:
    [problem] = problems(changes)
    assert text in problem.text
    assert hint in problem.hint


def test_with_the_hint_it_works() -> None:
    """Also where several things are wrong at once, and one mends the other."""
    wrong = {"trainer.nnodes": 3, "data.train_batch_size": 250, f"{ACTOR}.ppo_mini_batch_size": 50, f"{ROLLOUT}.n": 5}
    for _ in range(5):
        found = problems(wrong, 24)
        if not found:
            break
        wrong |= dict(each.hint.split("=") for each in found)
    assert problems(wrong, 24) == ()
    assert wrong["data.train_batch_size"] == "240"


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm.adv_estimator": "mine", "actor_rollout_ref.model.external_lib": "my.lib", "critic.enable": False},
        {"model_engine": "veomni", f"{ACTOR}.ppo_mini_batch_size": 7, "critic.ppo_mini_batch_size": 7},
        {f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 7, "trainer.v1.trainer_mode": "colocate_async"},
        {f"{REF}.log_prob_micro_batch_size_per_gpu": "null"},
    ],
    ids=["a library of one's own", "an engine whose ranks are not known", "a step of any size", "no reference model"],
)
def test_what_is_not_for_us_to_judge(changes: dict[str, Any]) -> None:
    assert problems(changes) == ()


def test_an_answer_that_is_too_long_ends_the_job() -> None:
    composed = compose(RELEASE.verl, words({
        f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 1000, "data.max_prompt_length": 512,
        "data.max_response_length": 1024, "algorithm.adv_estimator": "grpo",
    }))  # fmt: skip
    assert composed.values is not None
    [note] = rules.notes(composed.values)
    assert "ppo_max_token_len_per_gpu=1000 is less than a prompt and an answer may have (1536 tokens)" in note


def test_a_configuration_of_another_form_is_no_error_of_ours() -> None:
    assert isinstance(rules.problems({"trainer": 3, "data": None}, 8), tuple)
    assert Setting({"a": {"b": True}}, 8).whole("a.b") is None


CHOICES: dict[str, tuple[Any, ...]] = {
    "trainer.nnodes": (1, 2, 3), "trainer.n_gpus_per_node": (1, 2, 8), "data.train_batch_size": (16, 48, 60, 256),
    f"{ROLLOUT}.n": (1, 3, 8), f"{ACTOR}.ppo_mini_batch_size": (16, 64, 300),
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": (2, 4, "null"), f"{ACTOR}.use_dynamic_bsz": (True, False, False),
    f"{ACTOR}.ppo_micro_batch_size": ("null", "null", "null", 48),
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": (8, 8, "null"), f"{ACTOR}.use_kl_loss": (True, False),
    f"{REF}.log_prob_micro_batch_size_per_gpu": (8, 8, "null"), "critic.ppo_micro_batch_size_per_gpu": (4, 4, "null"),
    "algorithm.adv_estimator": ("gae", "grpo"), f"{ACTOR}.loss_agg_mode": ("token-mean", "token-mean", "tokens"),
    f"{ACTOR}.ulysses_sequence_parallel_size": (1, 1, 2), "actor_rollout_ref.model.use_remove_padding": (True, False),
    f"{ROLLOUT}.val_kwargs.do_sample": (True, False), f"{ROLLOUT}.temperature": (1.0, 0),
    f"{ROLLOUT}.expert_parallel_size": (1, 1, 2, 4), f"{ROLLOUT}.tensor_model_parallel_size": (1, 2),
    f"{ROLLOUT}.pipeline_model_parallel_size": (1, 1, 1, 2), f"{ROLLOUT}.mode": ("async", "async", "async", "sync"),
}  # fmt: skip
"""Values of what verl's driver validates; each is left alone as often as not."""
OF_THE_DRIVER = (
    rules.batch_is_divided, rules.micro_batches_are_given, rules.updates_fit_the_batch, rules.rollout_is_possible,
)  # fmt: skip
OF_THE_WORKERS = ("no number of whole nodes", "cannot be divided by actor_rollout_ref.actor.ulysses")


@pytest.mark.verl
def test_verls_own_validation_says_the_same(tmp_path: Path) -> None:
    """Of 120 configurations, verl refuses just those in which a rule of its driver finds something."""
    model = {f"{role}.model.path": make_tiny_model(tmp_path / "tiny") for role in ("actor_rollout_ref", "critic")}
    chance = random.Random(7)
    cases = [
        {key: chance.choice(values) for key, values in CHOICES.items() if chance.random() < chance.choice((0.15, 0.5))}
        for _ in range(120)
    ]
    sent = json.dumps([words({**case, **model}) for case in cases])
    probe = Path(__file__).parent / "probes" / "validate.py"
    done = subprocess.run([sys.executable, str(probe)], input=sent, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    refused = 0
    for case, theirs in zip(cases, json.loads(done.stdout.splitlines()[-1]), strict=True):
        setting = Setting(compose(RELEASE.verl, words(case)).values or {}, 24)
        found = [each for rule in OF_THE_DRIVER for each in rule(setting)]
        found += [each for each in rules.names_are_known(setting) if "loss_agg_mode" in each.text]
        found += [each for each in rules.sequences_are_split(setting) if each.text.startswith(ACTOR)]
        ours = [each.text for each in found if not any(part in each.text for part in OF_THE_WORKERS)]
        assert bool(ours) == (theirs is not None), (case, ours, theirs)
        refused += bool(ours)
    assert 40 < refused < 100
