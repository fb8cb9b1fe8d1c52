"""Configurations with faults in them, made of a seed: what `bench_check.py` shows to verl and to `cloudrl check`."""

from __future__ import annotations

import random
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

A, R, REF, C = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref", "critic"
FILES = {"data.train_files": "/data/train.parquet", "data.val_files": "/data/test.parquet"}
PLAIN: Mapping[str, Any] = {
    **FILES, "trainer.nnodes": 2, "trainer.n_gpus_per_node": 8, "trainer.save_freq": 20, "trainer.test_freq": 5,
    "data.train_batch_size": 256, "data.max_prompt_length": 512, "data.max_response_length": 1024,
    f"{R}.n": 4, f"{R}.name": "vllm", f"{R}.tensor_model_parallel_size": 2, f"{R}.gpu_memory_utilization": 0.6,
    f"{A}.ppo_mini_batch_size": 64, f"{A}.ppo_micro_batch_size_per_gpu": 4, f"{A}.optim.lr": 1e-6,
    f"{R}.log_prob_micro_batch_size_per_gpu": 8, f"{REF}.log_prob_micro_batch_size_per_gpu": 8,
    "critic.ppo_micro_batch_size_per_gpu": 4, "actor_rollout_ref.model.path": "Qwen/Qwen2.5-7B-Instruct",
}  # fmt: skip
_TOKENS = {f"{A}.use_dynamic_bsz": True, f"{R}.log_prob_use_dynamic_bsz": True}
_GRPO = {"algorithm.adv_estimator": "grpo", f"{A}.use_kl_loss": True, f"{A}.kl_loss_coef": 0.001}
BASES: Mapping[str, Mapping[str, Any]] = {
    "ppo": PLAIN,
    "grpo": {**PLAIN, **_GRPO, **_TOKENS},
    "grpo, fixed micro batches": {**PLAIN, **_GRPO},
    "grpo, KL in the reward": {**PLAIN, "algorithm.adv_estimator": "grpo", "algorithm.use_kl_in_reward": True},
    "grpo, LoRA": {**PLAIN, **_GRPO, **_TOKENS, "actor_rollout_ref.model.lora_rank": 32},
    "grpo, Megatron": {**PLAIN, **_GRPO, **_TOKENS, "model_engine": "megatron",
                       f"{A}.megatron.tensor_model_parallel_size": 4},
    "dapo": {**PLAIN, **_TOKENS, "algorithm.adv_estimator": "grpo", "algorithm.filter_groups.enable": True,
             "algorithm.filter_groups.metric": "acc"},
    "colocated, asynchronous": {**PLAIN, **_GRPO, **_TOKENS, "trainer.v1.trainer_mode": "colocate_async"},
    "separate, asynchronous": {**PLAIN, **_GRPO, **_TOKENS, "trainer.v1.trainer_mode": "separate_async",
                               "trainer.nnodes": 1, f"{R}.nnodes": 1, f"{R}.checkpoint_engine.backend": "nccl"},
    "distillation": {**PLAIN, **_TOKENS, "algorithm.adv_estimator": "grpo", "trainer.nnodes": 1,
                     "distillation.enabled": True, "distillation.nnodes": 1, "distillation.n_gpus_per_node": 8,
                     "distillation.teacher_models.teacher_model.model_path": "Qwen/Qwen2.5-7B-Instruct",
                     "distillation.teacher_models.teacher_model.inference.name": "vllm"},
}  # fmt: skip
"""All work on 16 GPUs."""

_PENALTY = "+reward.reward_kwargs.overlong_buffer_cfg"
_DAPO = {**BASES["dapo"], "reward.reward_manager.name": "dapo"}
PENALTIES: tuple[Mapping[str, Any], ...] = tuple({f"{_PENALTY}.{key}": value for key, value in each.items()} | rest
                                                 for each, rest in (
    ({"enable": True, "len": 256, "penalty_factor": 1.0, "log": False}, {"+reward.reward_kwargs.max_resp_len": 1024}),
    ({"enable": False, "len": 4096}, {}),
    ({"enable": True, "len": 256}, {}),
    ({"enable": True, "len": 4096}, {"+reward.reward_kwargs.max_resp_len": 1024}),
    ({"enable": True, "len": 0}, {"+reward.reward_kwargs.max_resp_len": 1024}),
    ({"enable": True}, {"+reward.reward_kwargs.max_resp_len": 1024}),
    ({"len": 256}, {"+reward.reward_kwargs.max_resp_len": 1024}),
    ({"enable": True, "len": 256}, {"+reward.reward_kwargs.max_resp_len": "abc"}),
))  # fmt: skip
"""Of DAPO for long answers: two that work, and what its manager asserts (reward_manager/dapo.py)."""

NUMBERS = (
    "trainer.nnodes", "trainer.n_gpus_per_node", "trainer.total_epochs", "trainer.total_training_steps",
    "trainer.save_freq", "trainer.test_freq", "trainer.critic_warmup", "trainer.v1.sampler.max_off_policy_threshold",
    "data.train_batch_size", "data.max_prompt_length", "data.max_response_length", "data.gen_batch_size",
    "data.train_max_samples", "data.val_batch_size", "data.dataloader_num_workers",
    f"{A}.ppo_mini_batch_size", f"{A}.ppo_micro_batch_size_per_gpu", f"{A}.ppo_epochs", f"{A}.clip_ratio",
    f"{A}.clip_ratio_c", f"{A}.entropy_coeff", f"{A}.kl_loss_coef", f"{A}.ppo_max_token_len_per_gpu", f"{A}.optim.lr",
    f"{A}.optim.weight_decay", f"{A}.optim.lr_warmup_steps", f"{A}.optim.lr_warmup_steps_ratio", f"{A}.grad_clip",
    f"{A}.ulysses_sequence_parallel_size", f"{A}.fsdp_config.fsdp_size",
    f"{C}.ppo_mini_batch_size", f"{C}.ppo_micro_batch_size_per_gpu", f"{C}.ppo_epochs", f"{C}.cliprange_value",
    f"{C}.optim.lr", f"{R}.n", f"{R}.tensor_model_parallel_size", f"{R}.data_parallel_size",
    f"{R}.pipeline_model_parallel_size", f"{R}.expert_parallel_size", f"{R}.gpu_memory_utilization",
    f"{R}.temperature", f"{R}.top_p", f"{R}.top_k", f"{R}.val_kwargs.n", f"{R}.val_kwargs.temperature",
    f"{R}.val_kwargs.top_p", f"{R}.max_num_batched_tokens", f"{R}.max_num_seqs", f"{R}.max_model_len",
    f"{R}.log_prob_micro_batch_size_per_gpu", f"{R}.agent.num_workers",
    f"{R}.checkpoint_engine.update_weights_bucket_megabytes", f"{REF}.log_prob_micro_batch_size_per_gpu",
    "algorithm.gamma", "algorithm.lam", "algorithm.kl_ctrl.kl_coef", "algorithm.kl_ctrl.horizon",
    "actor_rollout_ref.model.lora_rank", "reward.num_workers", "distillation.nnodes", "distillation.n_gpus_per_node",
)  # fmt: skip
NAMES: Mapping[str, tuple[str, ...]] = {
    "trainer.logger": ("[wanb]", "[console,tensorbord]", "null", "[console,wandb]", "console", "3"),
    "trainer.resume_mode": ("latest", "autos", "disable"),
    "trainer.v1.trainer_mode": ("asynch", "synch", "sync"),
    "trainer.v1.sampler.max_off_policy_strategy": ("droop", "wait"),
    "algorithm.adv_estimator": ("grop", "mine", "rloo", "reinforce_plus_plus", "remax"),
    "algorithm.kl_penalty": ("kll", "k3", "full"), "algorithm.kl_ctrl.type": ("fix", "adaptive"),
    f"{A}.policy_loss.loss_mode": ("gsp", "mine", "gspo", "vanilla", "dro", "clip_cov"),
    f"{A}.kl_loss_type": ("low_var", "k3+", "mse", "full"), f"{A}.loss_agg_mode": ("token", "token-sum"),
    f"{A}.strategy": ("fsdp3", "fsdp2", "megatron", "veomni"), f"{A}.fsdp_config.model_dtype": ("bf17", "bf16", "fp16"),
    f"{A}.optim.optimizer": ("AdamX", "SGD", "Adam"), f"{A}.optim.lr_scheduler_type": ("linear", "cosine"),
    f"{C}.optim.lr_scheduler_type": ("linear", "cosine"), f"{C}.strategy": ("fsdp3", "fsdp2"),
    f"{R}.name": ("vlm", "null", "sglang", "hf"), f"{R}.mode": ("sync", "asynch"),
    f"{R}.dtype": ("bf17", "bf16", "float16", "half"), f"{R}.quantization": ("fp9", "fp8"),
    f"{R}.checkpoint_engine.backend": ("nccll", "nccl", "nixl", "null"),
    f"{R}.agent.default_agent_loop": ("tool_agent", "single_turn_agent"), f"{R}.multi_turn.format": ("hermes",),
    "reward.reward_manager.name": ("dpao", "dapo", "prime"), "reward.reward_manager.source": ("registr", "register"),
    f"{A}.checkpoint.save_contents": ("[model]", "[model,hf_model]"),
    "distillation.distillation_loss.loss_mode": ("foo", "k1", "k3", "forward_kl_topk"),
}  # fmt: skip
SIZES: Mapping[str, tuple[int, ...]] = {
    "data.train_batch_size": (30, 48, 60, 64, 96, 100, 250, 256, 512, 1000, 8000),
    f"{A}.ppo_mini_batch_size": (3, 12, 16, 30, 32, 63, 64, 128, 300),
    f"{A}.ppo_micro_batch_size_per_gpu": (1, 2, 3, 5, 8, 16), f"{C}.ppo_mini_batch_size": (7, 16, 62, 64, 300),
    f"{R}.log_prob_micro_batch_size_per_gpu": (1, 3, 7, 16), f"{REF}.log_prob_micro_batch_size_per_gpu": (1, 3, 7, 16),
    f"{R}.n": (1, 2, 3, 5, 8), "trainer.nnodes": (1, 2, 3), "trainer.n_gpus_per_node": (1, 2, 4, 6, 8),
    f"{A}.ulysses_sequence_parallel_size": (1, 2, 3, 4, 8), f"{R}.tensor_model_parallel_size": (1, 2, 3, 4, 8, 12, 16),
    f"{R}.data_parallel_size": (1, 2, 3, 4), f"{R}.expert_parallel_size": (1, 2, 4, 8),
    f"{A}.fsdp_config.fsdp_size": (-1, 2, 3, 4, 6, 8, 16, 32), "data.gen_batch_size": (32, 48, 64, 256, 300),
    "trainer.v1.separate_async.parameter_sync_step": (1, 2, 3, 4), f"{R}.nnodes": (0, 1, 2),
    "distillation.teacher_models.teacher_model.inference.tensor_model_parallel_size": (1, 2, 3, 4),
}  # fmt: skip
MEGATRON = {
    f"{A}.megatron.{name}_parallel_size": (1, 2, 3, 4, 8)
    for name in ("tensor_model", "pipeline_model", "context", "expert_model", "virtual_pipeline_model")
} | {f"{REF}.megatron.tensor_model_parallel_size": (1, 2, 3, 4)}
ADDED = (
    A, f"{A}.optim", f"{A}.policy_loss", f"{A}.fsdp_config", f"{A}.checkpoint", R, f"{R}.val_kwargs",
    f"{R}.multi_turn", f"{R}.agent", f"{R}.checkpoint_engine", "actor_rollout_ref.model", REF, C, f"{C}.optim",
    "algorithm", "distillation", "data", "trainer", "trainer.v1", "reward", f"{R}.engine_kwargs.vllm", f"{R}.custom",
    "actor_rollout_ref.model.override_config", "data.custom_cls", "reward.custom_reward_function.reward_kwargs",
    f"{A}.optim.override_optimizer_config", "data.apply_chat_template_kwargs",
)  # fmt: skip
SECTIONS = (
    f"{A}.policy_loss", f"{A}.optim", f"{A}.fsdp_config", f"{A}.checkpoint", f"{R}.val_kwargs", f"{R}.multi_turn",
    f"{R}.agent", f"{R}.checkpoint_engine", "actor_rollout_ref.model.override_config", "algorithm.kl_ctrl",
    "algorithm.filter_groups", "trainer.v1.sampler", "data.apply_chat_template_kwargs", f"{A}", f"{R}",
    "reward.reward_manager", "distillation",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One configuration on 16 GPUs."""

    kind: str
    base: str
    overrides: tuple[str, ...]
    changed: tuple[str, ...]


def cases(count: int, seed: int, leaves: tuple[str, ...]) -> list[Case]:
    """So many cases, of each kind as many.

    Args:
        count: all kinds together.
        seed: of the choices.
        leaves: the dotted names of all values of verl's configuration.
    """
    chance = random.Random(seed)
    kinds = tuple(_MAKERS)
    return [_case(kinds[index % len(kinds)], chance, leaves) for index in range(count)]


def penalties() -> list[Case]:
    """DAPO's penalty for long answers, which no seed makes."""
    return [Case("DAPO's penalty", "dapo", tuple(f"{key}={value}" for key, value in {**_DAPO, **each}.items()),
                 tuple(f"{key}={value}" for key, value in each.items())) for each in PENALTIES]  # fmt: skip


def _case(kind: str, chance: random.Random, leaves: tuple[str, ...]) -> Case:
    base = chance.choice(tuple(BASES))
    changed = tuple(_MAKERS[kind](chance, leaves, base))
    given = {key: f"{key}={value}" for key, value in BASES[base].items()}
    for override in changed:  # the later of two of one key wins
        given.pop(override.partition("=")[0], None)
    return Case(kind, base, (*given.values(), *changed), changed)


def _wrong_type(chance: random.Random, _: tuple[str, ...], __: str) -> list[str]:
    return [
        f"{chance.choice(NUMBERS)}={chance.choice(('abc', '1e-6x', '[1,2]', '{a:1}', 'ten', chr(39) + '3' + chr(39)))}"
    ]


def _null(chance: random.Random, _: tuple[str, ...], __: str) -> list[str]:
    return [f"{chance.choice((*NUMBERS, *NAMES))}=null"]


def _out_of_range(chance: random.Random, _: tuple[str, ...], __: str) -> list[str]:
    return [f"{chance.choice(NUMBERS)}={chance.choice((0, -1, -5, 1.5, 80, 0.5))}"]


def _name(chance: random.Random, _: tuple[str, ...], __: str) -> list[str]:
    key = chance.choice(tuple(NAMES))
    return [f"{key}={chance.choice(NAMES[key])}"]


def _sizes(chance: random.Random, _: tuple[str, ...], base: str) -> list[str]:
    known = {**SIZES, **(MEGATRON if "Megatron" in base else {})}
    return [f"{key}={chance.choice(known[key])}" for key in chance.sample(tuple(known), chance.choice((1, 1, 2, 3)))]


def _added_key(chance: random.Random, _: tuple[str, ...], __: str) -> list[str]:
    name = chance.choice(("my_key", "n_val", "adaptive_entropy", "tau_pos_", "x1"))
    return [f"+{chance.choice(ADDED)}.{name}={chance.choice((1, 'true', 'text'))}"]


def _misspelt_key(chance: random.Random, leaves: tuple[str, ...], __: str) -> list[str]:
    parent, _, name = chance.choice(leaves).rpartition(".")
    at = chance.randrange(len(name))
    letter = chance.choice(string.ascii_lowercase)
    made = chance.choice(
        (name[:at] + name[at + 1 :], name[:at] + letter + name[at:], name[:at] + letter + name[at + 1 :])
    )
    return [f"{chance.choice(('', '', '+'))}{f'{parent}.' if parent else ''}{made or 'x'}=1"]


def _value_for_section(chance: random.Random, _: tuple[str, ...], __: str) -> list[str]:
    return [f"{chance.choice(SECTIONS)}={chance.choice(('gspo', 'true', 3, '[1]', 'null'))}"]


def _any_leaf(chance: random.Random, leaves: tuple[str, ...], __: str) -> list[str]:
    return [f"{chance.choice(leaves)}={chance.choice(('abc', 3, 1.5, 'true', 'null', '[1]', -1))}"]


def _several(chance: random.Random, leaves: tuple[str, ...], base: str) -> list[str]:
    makers = chance.sample((_wrong_type, _out_of_range, _name, _sizes, _added_key, _null), chance.choice((2, 3)))
    made = {each.partition("=")[0]: each for make in makers for each in make(chance, leaves, base)}
    return list(made.values())


_MAKERS = {
    "wrong type": _wrong_type, "null": _null, "out of range": _out_of_range, "name": _name, "sizes": _sizes,
    "added key": _added_key, "misspelt key": _misspelt_key, "value for a section": _value_for_section,
    "any value": _any_leaf, "several": _several,
}  # fmt: skip
