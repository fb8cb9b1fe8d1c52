"""What cannot work in verl's configuration, and that verl itself says the same."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from verl_forks import Script

from cloudrl.jobs.findings import overrides_of
from cloudrl.verl import rules
from cloudrl.verl.batches import with_fitting_batches
from cloudrl.verl.composition import compose
from cloudrl.verl.override_parsing import Problem
from cloudrl.verl.release_files import source_of
from cloudrl.verl.releases import RELEASE
from cloudrl.verl.rules import batches, names, parallelism
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


def setting(changes: dict[str, Any], gpus: int = 16, has_own_code: bool = False) -> Setting:
    composed = compose(RELEASE.verl, words(changes))
    assert composed.values is not None, composed.problems
    return Setting(composed.values, gpus, has_own_code, composed.base, source_of(RELEASE.verl))


def problems(changes: dict[str, Any], gpus: int = 16) -> tuple[Problem, ...]:
    return rules.problems(setting(changes, gpus))


MEGATRON = {
    "model_engine": "megatron", f"{ACTOR}.megatron.tensor_model_parallel_size": 2,
    f"{REF}.megatron.tensor_model_parallel_size": 2, "critic.megatron.tensor_model_parallel_size": 2,
}  # fmt: skip
LORA = {"actor_rollout_ref.model.lora_rank": 32, f"{ACTOR}.use_kl_loss": True}
SEPARATE = {
    "trainer.v1.trainer_mode": "separate_async", f"{ROLLOUT}.nnodes": 1, "trainer.nnodes": 1,
    f"{ROLLOUT}.checkpoint_engine.backend": "nccl",
}  # fmt: skip
REWARD_MODEL = {"reward.reward_model.enable": True, "reward.reward_model.model_path": "/m",
                "reward.reward_model.rollout.name": "vllm"}  # fmt: skip
GRPO = {"algorithm.adv_estimator": "grpo"}
NOT_DIVIDED = {**GRPO, f"{ACTOR}.ppo_mini_batch_size": 63, f"{ROLLOUT}.n": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {f"{ACTOR}.use_dynamic_bsz": True},
        {"algorithm.adv_estimator": "grpo", f"{ACTOR}.use_kl_loss": True},
        {"trainer.use_v1": False},
        MEGATRON,
        SEPARATE,
        LORA,
        {f"{ACTOR}.fsdp_config.fsdp_size": 4, f"{ACTOR}.ulysses_sequence_parallel_size": 2},
        {"critic.ppo_micro_batch_size_per_gpu": 5},  # its engine counts tokens, whatever is set
        {"critic.ppo_micro_batch_size_per_gpu": "null", "critic.ppo_micro_batch_size": 64},
        {"critic.ulysses_sequence_parallel_size": 3, "critic.model.use_remove_padding": False},  # not read
        {**NOT_DIVIDED, "trainer.val_only": True},
        {**MEGATRON, **NOT_DIVIDED, f"{ACTOR}.megatron.dynamic_context_parallel": True,
         f"{ACTOR}.megatron.max_seqlen_per_dp_cp_rank": 4096, f"{ACTOR}.use_dynamic_bsz": True},
        {**MEGATRON, "critic.megatron.tensor_model_parallel_size": 4, f"{ACTOR}.ppo_mini_batch_size": 66,
         f"{ACTOR}.use_dynamic_bsz": True},  # over which ranks is not known
        {"trainer.critic_warmup": 100, f"{ACTOR}.ppo_mini_batch_size": 63, f"{ROLLOUT}.n": 1,
         "critic.ppo_mini_batch_size": 64},
        {**GRPO, "trainer.val_only": True, f"{ACTOR}.policy_loss.loss_mode": "gsp"},
        {**LORA, "trainer.val_only": True, f"{REF}.log_prob_micro_batch_size_per_gpu": "null",
         f"{REF}.log_prob_micro_batch_size": 64},
        {"trainer.total_epochs": 0, "algorithm.adv_estimator": "grop"},
        {f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 7, f"{ROLLOUT}.agent.agent_loop_config_path": "/my/a.yaml"},
        {**GRPO, "trainer.use_v1": False, "algorithm.adv_estimator": "remax"},
        {f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 7, "algorithm.rollout_correction.bypass_mode": True},
        {f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 7, "trainer.v1.trainer_mode": "colocate_async"},
        {f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 7, "trainer.v1.sampler.custom_sampler.path": "pkg://mine"},
        {**LORA, f"{REF}.log_prob_micro_batch_size_per_gpu": 7},  # the actor is the reference
        {**LORA, f"{REF}.log_prob_micro_batch_size_per_gpu": "null", f"{REF}.log_prob_micro_batch_size": 64},
        {f"{ACTOR}.use_kl_loss": True, f"{REF}.ulysses_sequence_parallel_size": 2,
         f"{REF}.log_prob_micro_batch_size_per_gpu": 128},
        {f"{REF}.log_prob_micro_batch_size_per_gpu": "null"},  # there is no reference
        *({"algorithm.adv_estimator": "grop", key: value} for key, value in {
            "actor_rollout_ref.model.external_lib": "[cloudrl.verl_cpu.x,my.lib]",
            "reward.reward_manager.module.path": "/my/rm.py", "trainer.checkpoint_callback_class": "my.C",
            f"{ROLLOUT}.multi_turn.function_tool_path": "/my/tools.py", "data.trust_remote_code": True,
            f"{ACTOR}.optim.optimizer_impl": "my.optim", f"{ACTOR}._target_": "my.Config",
            "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES": "my",
        }.items()),
            {"algorithm.adv_estimator": "grop", "data.custom_cls.path": "/my/d.py", "data.custom_cls.name": "Rows"},
        {"model_engine": "veomni", f"{ACTOR}.ppo_mini_batch_size": 7, "critic.ppo_mini_batch_size": 7},
        {**SEPARATE, "trainer.n_gpus_per_node": 4, f"{ROLLOUT}.n_gpus_per_node": 8,
         f"{ROLLOUT}.tensor_model_parallel_size": 8},
        {**SEPARATE, "trainer.n_gpus_per_node": 4, f"{ROLLOUT}.n_gpus_per_node": 13,
         f"{ROLLOUT}.tensor_model_parallel_size": 4},  # three replicas
    ],
)  # fmt: skip
def test_what_works_has_no_problem(changes: dict[str, Any]) -> None:
    assert problems(changes) == ()


@pytest.mark.parametrize(
    ("changes", "text", "hint"),
    [
        ({"algorithm.adv_estimator": "GRPO"}, "=GRPO: verl has none of that name", "algorithm.adv_estimator=grpo"),
        ({"algorithm.adv_estimator": "grop"}, "algorithm.adv_estimator=grop: verl has none of that name",
         "algorithm.adv_estimator=grpo"),
        ({f"{ACTOR}.policy_loss.loss_mode": "gsp"}, "loss_mode=gsp: verl has none", "loss_mode=gspo"),
        ({"critic.enable": False}, "adv_estimator=gae needs a critic", "critic.enable=True"),
        ({"algorithm.adv_estimator": "remax"}, "=remax works with verl's older trainer alone", "trainer.use_v1=False"),
        ({f"{ACTOR}.loss_agg_mode": "token", "actor_rollout_ref.model.external_lib": "my.lib"},
         "loss_agg_mode=token: verl has token-mean", ""),
        ({"trainer.v1.trainer_mode": "synch"}, "trainer_mode=synch: verl has colocate_async", "trainer_mode=sync"),
        ({"trainer.resume_mode": "latest"}, "resume_mode=latest: verl has disable, auto, resume_path", ""),
        ({"data.train_batch_size": 250, f"{ROLLOUT}.n": 1},
         "data.train_batch_size=250 cannot be divided by 16", "data.train_batch_size=240"),
        ({**MEGATRON, "data.train_batch_size": 100, f"{ROLLOUT}.n": 1, f"{ACTOR}.ppo_mini_batch_size": 64},
         "data.train_batch_size=100 cannot be divided by 32", "data.train_batch_size=96"),
        ({f"{ACTOR}.ppo_micro_batch_size_per_gpu": "null"}, f"{ACTOR}.ppo_micro_batch_size_per_gpu is not set", "=8"),
        ({f"{ACTOR}.ppo_micro_batch_size": 64}, "ppo_micro_batch_size=64 and", "ppo_micro_batch_size=null"),
        ({f"{ACTOR}.ppo_micro_batch_size": 64, f"{ACTOR}.ppo_micro_batch_size_per_gpu": "null"},
         "ppo_micro_batch_size_per_gpu is not set", "per_gpu=4 actor_rollout_ref.actor.ppo_micro_batch_size=null"),
        ({f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.use_kl_loss": True, f"{REF}.log_prob_use_dynamic_bsz": False,
          f"{REF}.log_prob_micro_batch_size_per_gpu": "null"}, f"{REF}.log_prob_micro_batch_size_per_gpu is", "=8"),
        ({f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": "null"}, f"{ROLLOUT}.log_prob_micro_batch_size", "=8"),
        ({f"{REF}.log_prob_micro_batch_size_per_gpu": "null", f"{ACTOR}.use_kl_loss": True}, f"{REF}.log_prob", "=8"),
        ({"critic.ppo_micro_batch_size_per_gpu": "null"}, "critic.ppo_micro_batch_size_per_gpu is not set", "=8"),
        ({"critic.ppo_micro_batch_size_per_gpu": "null", "critic.ppo_micro_batch_size": 8},
         "critic.ppo_micro_batch_size=8 is less than the 16 GPUs",
         "critic.ppo_micro_batch_size_per_gpu=1 critic.ppo_micro_batch_size=null"),
        ({f"{ACTOR}.ppo_mini_batch_size": 512, "critic.ppo_mini_batch_size": 64},
         "ppo_mini_batch_size=512 is more than data.train_batch_size=256", "ppo_mini_batch_size=256"),
        (NOT_DIVIDED, "ppo_mini_batch_size=63 cannot be divided over 16 data-parallel ranks", "ppo_mini_batch_size=48"),
        ({"critic.ppo_mini_batch_size": 62, f"{ROLLOUT}.n": 3, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1,
          f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 1},
         "critic.ppo_mini_batch_size=62 times actor_rollout_ref.rollout.n=3 cannot be divided over 16",
         "critic.ppo_mini_batch_size=48"),
        ({f"{ACTOR}.ppo_micro_batch_size_per_gpu": 3},
         "a mini batch has 16 samples on each rank, which actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=3",
         "ppo_micro_batch_size_per_gpu=2"),
        ({f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 7},
         "a step has 64 samples on each rank, which actor_rollout_ref.rollout.log_prob_micro", "per_gpu=4"),
        ({**LORA, f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 7, "algorithm.rollout_correction.bypass_mode": True},
         "a step has 64 samples on each rank", "per_gpu=4"),
        ({f"{REF}.log_prob_micro_batch_size_per_gpu": 7, f"{ACTOR}.use_kl_loss": True}, f"{REF}.log_prob_micro", "=4"),
        ({f"{ACTOR}.use_dynamic_bsz": True, f"{ROLLOUT}.log_prob_use_dynamic_bsz": False}, "differ",
         f"{ROLLOUT}.log_prob_use_dynamic_bsz=True"),
        ({f"{ACTOR}.ulysses_sequence_parallel_size": 3, f"{ACTOR}.use_dynamic_bsz": True},
         "16 GPUs cannot be divided by actor_rollout_ref.actor.ulysses_sequence_parallel_size=3", "size=2"),
        ({f"{ACTOR}.ulysses_sequence_parallel_size": 1.5}, "=1.5: verl needs a whole number of at least 1", "size=1"),
        ({"critic.fsdp.ulysses_sequence_parallel_size": 3}, "by critic.fsdp.ulysses_sequence_parallel_", "size=2"),
        ({f"{ACTOR}.ulysses_sequence_parallel_size": 2, "actor_rollout_ref.model.use_remove_padding": False},
         "=2 needs actor_rollout_ref.model.use_remove_padding", "use_remove_padding=True"),
        ({f"{ACTOR}.fsdp_config.fsdp_size": 6}, "16 GPUs cannot be divided by", "fsdp_size=-1"),
        ({f"{ACTOR}.use_kl_loss": True, f"{REF}.fsdp_config.fsdp_size": 6}, f"divided by {REF}.fsdp_config", "=-1"),
        ({f"{ROLLOUT}.name": "???"}, f"{ROLLOUT}.name is not set", f"{ROLLOUT}.name=vllm"),
        ({f"{ROLLOUT}.mode": "sync"}, f"{ROLLOUT}.mode=sync is gone", f"{ROLLOUT}.mode=async"),
        ({f"{ROLLOUT}.expert_parallel_size": 4}, "expert_parallel_size=4 is not tensor times", "parallel_size=2"),
        ({f"{ROLLOUT}.pipeline_model_parallel_size": 2}, "verl has none with vllm", "parallel_size=1"),
        ({f"{ROLLOUT}.tensor_model_parallel_size": 12}, "takes 12 GPUs, not a number of whole", "size=8"),
        ({f"{ROLLOUT}.tensor_model_parallel_size": 3}, "takes 3 GPUs, which do not divide 16", "parallel_size=2"),
        ({f"{ROLLOUT}.tensor_model_parallel_size": 1, f"{ROLLOUT}.data_parallel_size": 3}, "3 GPUs, which do not", ""),
        ({f"{ROLLOUT}.val_kwargs.do_sample": True, f"{ROLLOUT}.temperature": 0}, "temperature above 0", "=False"),
        ({"actor_rollout_ref.model.lora_rank": 600}, "LoRA of rank 600: vLLM takes 512 at most", "lora_rank=512"),
        ({"reward.reward_model.enable_resource_pool": True, "reward.reward_model.nnodes": 2},
         "32 GPUs are needed (16 for training, 16 for the reward model)", "--nodes 4"),
        ({"critic.ppo_micro_batch_size": 64, "critic.ppo_micro_batch_size_per_gpu": 64},
         "critic.ppo_micro_batch_size=64 gives ppo_micro_batch_size_per_gpu the same value",
         "critic.ppo_micro_batch_size_per_gpu=4 critic.ppo_micro_batch_size=null"),
        ({"reward.reward_model.enable_resource_pool": True}, "the reward model has GPUs of its own", "nnodes=1"),
        ({"reward.reward_model.enable_resource_pool": True, "reward.reward_model.nnodes": 1},
         "24 GPUs are needed (16 for training, 8 for the reward model), and the cluster has 16", "trainer.nnodes"),
        ({**SEPARATE, "data.train_batch_size": 128},
         "data.train_batch_size=128 is not parameter_sync_step=4 times", "parameter_sync_step=2"),
        ({**SEPARATE, f"{ROLLOUT}.checkpoint_engine.backend": "naive"}, "naive cannot reach GPUs", "=nccl"),
        ({**SEPARATE, **REWARD_MODEL}, "needs a reward model with GPUs of its own", "=True"),
        ({"algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": "null"},
         "algorithm.filter_groups.enable needs a metric", "metric=reward"),
        ({"algorithm.filter_groups.enable": True, **REWARD_MODEL}, "needs rewards before", "=True"),
        ({"trainer.resume_mode": "resume_path", "trainer.resume_from_path": "/c/run"}, "names no step", "global_step_"),
    ],
)  # fmt: skip
def test_what_cannot_work(changes: dict[str, Any], text: str, hint: str) -> None:
    [problem] = problems(changes)
    assert text in problem.text
    assert hint in problem.hint
    [problem] = with_fitting_batches(setting(changes), [problem])
    if fix := overrides_of(problem.hint):
        assert problems({**changes, **dict(word.split("=", 1) for word in fix)}) == ()


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


def test_a_name_that_code_of_the_users_may_register_is_noted() -> None:
    said = "verl has none of that name; does your code bring it?"
    near, own = {"algorithm.adv_estimator": "grop"}, {"algorithm.adv_estimator": "mine"}
    assert rules.problems(setting(near, has_own_code=True)) == ()
    assert rules.notes(setting(near, has_own_code=True)) == (f"algorithm.adv_estimator=grop: {said}",)
    assert rules.notes(setting(own, has_own_code=True)) == (f"algorithm.adv_estimator=mine: {said}",)
    [problem] = problems(own)
    assert problem.text.startswith("algorithm.adv_estimator=mine: verl has none of that name (trainer/ppo/core_algos")
    assert rules.notes(setting(near)) == ()


@pytest.mark.parametrize(("key", "value", "number"), [("trainer.save_freq", True, 1), ("trainer.test_freq", False, 0),
                                                     ("data.dataloader_num_workers", True, 1),
                                                     ("data.train_max_samples", True, 1)])  # fmt: skip
def test_a_flag_where_verl_counts_is_noted(key: str, value: bool, number: int) -> None:
    assert problems({key: value}) == ()
    assert rules.notes(setting({key: value})) == (f"{key}={value} counts as {number}: is that meant?",)


def test_without_a_default_each_row_names_its_agent_loop() -> None:
    key = f"{ROLLOUT}.agent.default_agent_loop"
    assert problems({key: "null"}) == ()
    [note] = rules.notes(setting({key: "null"}))
    assert note.startswith(f"{key}=null: each row of the data has to name its agent loop")


def test_an_answer_that_is_too_long_ends_the_job() -> None:
    [note] = rules.notes(setting({
        f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 1000, "data.max_prompt_length": 512,
        "data.max_response_length": 1024, "algorithm.adv_estimator": "grpo",
    }))  # fmt: skip
    assert "ppo_max_token_len_per_gpu=1000 is less than a prompt and an answer may have (1536 tokens)" in note


def test_a_configuration_of_another_form_is_no_error_of_ours() -> None:
    assert isinstance(rules.problems(Setting({"trainer": 3, "data": None}, 8)), tuple)
    assert Setting({"a": {"b": True}}, 8).whole("a.b") is None
    for size in (-3, 0, 10**12, "'1.0'", 2.5, "null"):
        for key in (
            f"{ACTOR}.ppo_micro_batch_size_per_gpu",
            f"{ROLLOUT}.tensor_model_parallel_size",
            f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
            f"{ROLLOUT}.temperature",
            "trainer.nnodes",
        ):
            problems({key: size, f"{ROLLOUT}.val_kwargs.do_sample": True})


CHOICES: dict[str, tuple[Any, ...]] = {
    "trainer.nnodes": (1, 2, 3), "trainer.n_gpus_per_node": (1, 2, 8), "data.train_batch_size": (16, 48, 60, 256),
    f"{ROLLOUT}.n": (1, 3, 8), f"{ACTOR}.ppo_mini_batch_size": (16, 64, 300),
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": (2, 4, "null"), f"{ACTOR}.use_dynamic_bsz": (True, False, False),
    f"{ACTOR}.ppo_micro_batch_size": ("null", "null", "null", 48),
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": (8, 8, "null"), f"{ACTOR}.use_kl_loss": (True, False),
    f"{REF}.log_prob_micro_batch_size_per_gpu": (8, 8, "null"), f"{REF}.log_prob_micro_batch_size": ("null", 16),
    "critic.ppo_micro_batch_size_per_gpu": (4, 4, "null"), "critic.ppo_micro_batch_size": ("null", "null", 24, 7),
    "critic.use_dynamic_bsz": (True, False), "critic.ulysses_sequence_parallel_size": (1, 2),
    "algorithm.adv_estimator": ("gae", "grpo"), f"{ACTOR}.loss_agg_mode": ("token-mean", "token-mean", "tokens"),
    f"{ACTOR}.ulysses_sequence_parallel_size": (1, 1, 2), "actor_rollout_ref.model.use_remove_padding": (True, False),
    f"{ROLLOUT}.val_kwargs.do_sample": (True, False), f"{ROLLOUT}.temperature": (1.0, 0),
    f"{ROLLOUT}.expert_parallel_size": (1, 1, 2, 4), f"{ROLLOUT}.tensor_model_parallel_size": (1, 2),
    f"{ROLLOUT}.pipeline_model_parallel_size": (1, 1, 1, 2), f"{ROLLOUT}.mode": ("async", "async", "async", "sync"),
    f"{ROLLOUT}.name": ("vllm", "vllm", "sglang", "???"), "trainer.use_v1": (True, False),
    f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": (1, 2),
}  # fmt: skip
"""Values of what verl's driver validates; most are left alone, so that often one thing is wrong, or none."""
CASES = 480 if os.environ.get("CLOUDRL_SLOW") == "1" else 60
OF_THE_DRIVER: tuple[Any, ...] = (
    batches.batch_is_divided, batches.micro_batches_are_given, batches.mini_batches_fit,
    parallelism.rollout_is_possible, names.names_are_known, parallelism.sequences_are_split,
)  # fmt: skip


def by_the_driver(case: dict[str, Any]) -> list[str]:
    """What we find that verl finds before its workers start; what only they find is left out of the case first."""
    if case.get(f"{ACTOR}.ppo_micro_batch_size_per_gpu") == "null" and case.get(f"{ACTOR}.ppo_micro_batch_size"):
        case = {**case, f"{ACTOR}.ppo_micro_batch_size_per_gpu": case[f"{ACTOR}.ppo_micro_batch_size"]}
        case[f"{ACTOR}.ppo_micro_batch_size"] = "null"
    found = [each.text for rule in OF_THE_DRIVER for each in rule(setting(case, 24))]
    of_workers = ("cannot be divided by actor_rollout_ref.actor.ulysses", "fsdp_config.ulysses", "critic.fsdp.ulysses")
    return [text for text in found if not any(part in text for part in of_workers)]


@pytest.fixture(scope="module")
def verl(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Configurations at random, and what verl's own code says of them and of itself."""
    tiny = make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
    model = {f"{role}.model.path": tiny for role in ("actor_rollout_ref", "critic")}
    chance = random.Random(11)
    cases = [
        {key: chance.choice(values) for key, values in CHOICES.items() if chance.random() < chance.choice((0.1, 0.4))}
        for _ in range(CASES)
    ]
    sent = json.dumps([words({**case, **model}) for case in cases])
    probe = Path(__file__).parent / "probes" / "validate.py"
    return {"cases": cases, **json.loads(Script(probe, given=sent).end()[-1])}


@pytest.mark.verl
def test_verls_own_validation_says_the_same(verl: dict[str, Any]) -> None:
    """verl refuses just those configurations in which a rule of its driver finds something."""
    refused = 0
    for case, answer in zip(verl["cases"], verl["answers"], strict=True):
        # with the old key alone the driver is content and its workers are not, where it is not that of the critic
        if case.get(f"{REF}.log_prob_micro_batch_size") == 16 and case.get(f"{ACTOR}.use_kl_loss"):
            continue
        ours = by_the_driver(case)
        assert bool(ours) == (answer["error"] is not None), (case, ours, answer)
        refused += bool(ours)
    assert CASES / 3 < refused < CASES * 0.9


@pytest.mark.verl
def test_verls_engines_are_set_as_is_reckoned(verl: dict[str, Any]) -> None:
    accepted = 0
    for case, answer in zip(verl["cases"], verl["answers"], strict=True):
        if answer["error"] is not None:
            continue
        ours = setting(case, 24)
        assert ours.sequence_parallel(ACTOR)[1] == answer["actor"]["ulysses_sequence_parallel_size"], case
        if ours.uses_critic:
            assert ours.sequence_parallel("critic")[1] == answer["critic"]["ulysses_sequence_parallel_size"], case
            assert answer["critic"]["use_dynamic_bsz"], "so that its micro batches are of tokens"
        accepted += 1
    assert accepted > CASES / 6


@pytest.mark.verl
def test_names_are_those_of_verls_registries(verl: dict[str, Any]) -> None:
    ours = setting({})
    assert sorted(ours.names("register_adv_est")) == verl["advantages"]
    assert sorted(ours.names("register_policy_loss")) == verl["policy losses"]
    assert sorted(ours.names("register_trainer")) == verl["trainers"]
