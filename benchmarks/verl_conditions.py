"""What workers of verl 0.9.1 would refuse: the conditions of `verl_judge.py` on engines, batches, servers and pools.

verl's own code is called where it needs no GPU. The rest is written from its source, with the place of each condition.
"""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from verl.trainer.ppo.utils import need_reference_policy
from verl.utils.fs import copy_local_path_from_hdfs
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.config.optimizer import build_optimizer
from verl.workers.rollout.replica import RolloutReplica

ROWS = 7473
"""Of the data set that all cases read: gsm8k."""
FSDP = ("fsdp", "fsdp2", "fsdp_turbo")
ENGINES = {"language_model": (*FSDP, "megatron", "veomni", "torchtitan", "automodel"),
           "value_model": ("fsdp", "fsdp2", "megatron", "veomni")}  # fmt: skip
"""workers/engine/*/transformer_impl.py: EngineRegistry.register."""
CHECKPOINT_ENGINES = ("naive", "nccl", "nixl", "mooncake", "kimi_ckpt_engine", "delta_sharded")
"""checkpoint_engine/*.py; those whose packages are not here are not registered here."""


class Refused(Exception):
    """A condition of verl's that is written here does not hold."""


def need(is_met: Any, words: str) -> None:
    if not is_met:
        raise Refused(words)


def whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def reference_is_actor(config: Any) -> bool:
    model = config.actor_rollout_ref.model
    rank = model.get("lora", {}).get("rank", 0)
    return (rank if rank > 0 else model.get("lora_rank", 0)) > 0 or model.get("lora_adapter_path") is not None


def has_teacher(config: Any) -> bool:
    """trainer/distillation: is_distillation_enabled."""
    return config.distillation is not None and config.distillation.enabled


def has_training(config: Any) -> bool:
    """trainer/ppo/v1/trainer_base.py: fit."""
    never = config.trainer.total_epochs <= 0 or (config.trainer.total_training_steps or 1) <= 0
    validates_only = config.trainer.get("val_before_train", True) and config.trainer.get("val_only", False)
    return not never and not validates_only


def updates_actor(config: Any) -> bool:
    steps = config.trainer.total_training_steps
    if steps is None:
        steps = ROWS // config.data.train_batch_size * config.trainer.total_epochs
    return has_training(config) and config.trainer.critic_warmup <= steps


def copied(path: Any) -> Any:
    """utils/fs.py: copy_to_local, of a path that is not on HDFS."""
    return path if str(path).startswith("hdfs://") else copy_local_path_from_hdfs(path)


def paths_are_read(config: Any) -> None:
    """What verl does with a path or a name before it opens anything."""
    trainer, rollout, reward = config.trainer, config.actor_rollout_ref.rollout, config.reward
    saves = has_training(config) and trainer.save_freq > 0
    if trainer.resume_mode == "auto" or saves:  # trainer/ppo/v1/trainer_base.py: _load_checkpoint, _save_checkpoint
        os.fspath(trainer.default_local_dir)
    if has_training(config) and trainer.get("rollout_data_dir", None):  # _dump_generations: os.makedirs
        os.fspath(trainer.rollout_data_dir)
    if not rollout.agent.get("agent_loop_manager_class", None):  # experimental/agent_loop/agent_loop.py
        for path in (rollout.multi_turn.tool_config_path, rollout.multi_turn.function_tool_path,
                     rollout.agent.agent_loop_config_path):  # fmt: skip
            os.fspath(path) if path else None
        need(isinstance(rollout.agent.default_agent_loop, str), "agent loop not registered")
    if reward.reward_model.enable:  # experimental/reward_loop/reward_loop.py
        copied(reward.reward_model.model_path)
    model = config.actor_rollout_ref.model
    if model.get("lora_rank", 0) > 0 and model.get("lora_adapter_path") is not None:
        copied(model.lora_adapter_path)


def code_is_loaded(config: Any) -> None:
    """utils/import_utils.py: load_module, before it opens a file."""
    trainer, reward = config.trainer, config.reward
    parts = [reward.custom_reward_function, config.data.custom_cls]
    sampler = trainer.v1.sampler.get("custom_sampler", None)
    if sampler is not None and sampler.get("path") and sampler.get("name"):
        parts.append(sampler)
    if reward.reward_manager.source == "importlib":
        parts.append(reward.reward_manager.module)
    for part in parts:  # utils/import_utils.py: load_module
        if part.get("path"):
            part["path"].startswith("pkg://")
            hasattr(part, part["name"])


def engines_are_built(config: Any, made: dict[str, Any], world: int) -> None:
    """workers/engine_workers.py: __init__; workers/engine/fsdp/transformer_impl.py; workers/engine/megatron."""
    first = True
    for name in ("critic", "ref", "actor"):
        if name not in made:
            continue
        role = made[name]
        engine, optim = role.engine, role.optim
        # utils/checkpoint/checkpoint_manager.py: BaseCheckpointManager
        role.checkpoint.get("load_contents", None) if role.checkpoint else None
        strategy = role.strategy if name != "ref" else engine.strategy
        need(
            strategy in ENGINES["value_model" if name == "critic" else "language_model"], f"Unknown backend: {strategy}"
        )
        kind = "fsdp" if strategy in FSDP else strategy
        section = {"fsdp": "fsdp" if name == "critic" else "fsdp_config"}.get(kind, kind)
        need(hasattr(role, section), f"{type(role).__name__} has no attribute {section}")
        if kind == "fsdp":
            fsdp_engine(engine, config.actor_rollout_ref.model if name != "critic" else config.critic.model, world)
            if name != "ref":
                fsdp_optimizer(optim, config, trained=name == "critic" or updates_actor(config))
        elif kind == "megatron":
            if first:
                megatron_groups(engine, world)
            need(engine.use_mbridge, "use_mbridge must be True")
            if name != "ref":
                need(optim.lr >= 0.0 and optim.weight_decay >= 0.0, "Invalid learning rate or weight decay")
        first = False


def fsdp_engine(engine: Any, model: Any, world: int) -> None:
    size, sequence = engine.fsdp_size, engine.ulysses_sequence_parallel_size
    need(not (sequence > 1 and not model.use_remove_padding), "you must enable `use_remove_padding`")
    if not (size < 0 or size >= world):
        need(whole(size) and size > 0 and world % size == 0, f"mesh {world} / {size}")
    need(whole(sequence) and sequence > 0 and world % sequence == 0, f"mesh {world} / {sequence}")
    PrecisionType.to_dtype(torch.float32 if engine.model_dtype is None else engine.model_dtype)
    if engine.mixed_precision is not None:
        for part, default in (("param_dtype", "bf16"), ("reduce_dtype", "fp32"), ("buffer_dtype", "fp32")):
            PrecisionType.to_dtype(engine.mixed_precision.get(part, default))


def fsdp_optimizer(optim: Any, config: Any, *, trained: bool) -> None:
    """workers/engine/fsdp/transformer_impl.py: _build_optimizer, _build_lr_scheduler, optimizer_step."""
    from verl.utils.torch_functional import get_constant_schedule_with_warmup, get_cosine_schedule_with_warmup

    if optim.optimizer_impl != "torch.optim":
        return
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = build_optimizer([weight], optim)
    total, steps = config.actor_rollout_ref.actor.optim.total_training_steps, optim.lr_warmup_steps
    if steps <= 0:
        steps = int(optim.lr_warmup_steps_ratio * total)
    if optim.lr_scheduler_type == "constant":
        get_constant_schedule_with_warmup(optimizer=optimizer, num_warmup_steps=steps)
    else:
        get_cosine_schedule_with_warmup(optimizer=optimizer, num_warmup_steps=steps, num_training_steps=total,
                                        min_lr_ratio=optim.min_lr_ratio, num_cycles=optim.num_cycles)  # fmt: skip
    if trained and has_training(config):
        weight.grad = torch.ones(2, 2)
        need(optim.clip_grad is not None, "clip_grad is None")
        torch.nn.utils.clip_grad_norm_([weight], max_norm=optim.clip_grad)


def megatron_groups(engine: Any, world: int) -> None:
    """megatron.core.parallel_state: initialize_model_parallel (Megatron-Core 0.16)."""
    tensor, pipeline, context = (
        engine.tensor_model_parallel_size, engine.pipeline_model_parallel_size, engine.context_parallel_size
    )  # fmt: skip
    experts, expert_tensor = engine.expert_model_parallel_size, engine.expert_tensor_parallel_size
    need(all(whole(each) and each > 0 for each in (tensor, pipeline, context, experts)), "sizes")
    need(world % (tensor * pipeline * context) == 0, "world size is not divisible by total model size")
    if expert_tensor is None:
        expert_tensor = tensor
    need(world % (expert_tensor * experts * pipeline) == 0, "world size is not divisible by expert parallelism")
    need(engine.virtual_pipeline_model_parallel_size is None or pipeline > 1, "interleaved schedule needs a pipeline")


def batches_are_divided(config: Any, made: dict[str, Any], world: int) -> None:
    """workers/engine_workers.py: init_model, train_mini_batch; workers/engine/utils.py: prepare_micro_batches."""
    role = config.actor_rollout_ref
    actor, rollout = role.actor, role.rollout
    need(actor.use_dynamic_bsz == rollout.log_prob_use_dynamic_bsz, "use_dynamic_bsz differ")
    if actor.use_dynamic_bsz:
        need(None not in (rollout.log_prob_max_token_len_per_gpu, actor.ppo_max_token_len_per_gpu), "max_token_len")
    else:
        need(None not in (rollout.log_prob_micro_batch_size_per_gpu, actor.ppo_micro_batch_size_per_gpu), "micro batch")
    if not has_training(config):
        return
    sizes = {name: ranks(made[name], world) for name in ("critic", "actor", "ref") if name in made}
    minis = []
    for name, section in (("critic", config.critic), ("actor", actor)):
        if name not in made or (name == "actor" and not updates_actor(config)) or sizes[name] is None:
            continue
        need(whole(section.ppo_mini_batch_size) and whole(section.ppo_epochs), "sizes are whole numbers")
        mini = section.ppo_mini_batch_size * rollout.n
        need(mini > 0 and mini % sizes[name] == 0 and section.ppo_epochs > 0, f"{mini} over {sizes[name]} ranks")
        minis.append(mini)
        if name == "actor":
            tokens_or_micro(actor, "ppo_", mini // sizes[name])
    if sizes["actor"] is None:
        return
    bypass = (config.algorithm.get("rollout_correction") or {}).get("bypass_mode", False)
    plain = config.trainer.v1.trainer_mode == "sync"
    plain = plain and not (config.algorithm.filter_groups or {}).get("enable", False)
    multiple = math.lcm(sizes["actor"], *minis)
    samples = -(-config.data.train_batch_size * rollout.n // multiple) * multiple
    shown = samples // sizes["actor"] if plain and not config.trainer.critic_warmup else None
    if not bypass or (need_reference_policy(config) and reference_is_actor(config)):
        tokens_or_micro(rollout, "log_prob_", shown)
    if sizes.get("ref"):
        tokens_or_micro(role.ref, "log_prob_", samples // sizes["ref"] if shown is not None else None)


def tokens_or_micro(section: Any, prefix: str, samples: int | None) -> None:
    """A limit of tokens or a micro batch: what is unknown of the samples is not judged."""
    if section.get("use_dynamic_bsz" if prefix == "ppo_" else "log_prob_use_dynamic_bsz"):
        limit = section[f"{prefix}max_token_len_per_gpu"]
        need(limit * 1 > 0, "no tokens")
        return
    micro = section[f"{prefix}micro_batch_size_per_gpu"]
    need(whole(micro) and micro > 0, "micro batch")
    need(samples is None or samples % micro == 0, f"data size {samples} must be divisible by {micro}")


def ranks(role: Any, world: int) -> int | None:
    engine = role.engine
    if engine.strategy in FSDP:
        return world // engine.ulysses_sequence_parallel_size
    if engine.strategy == "megatron":
        shared = engine.tensor_model_parallel_size * engine.pipeline_model_parallel_size * engine.context_parallel_size
        return world // shared
    return None


class Replica(RolloutReplica):
    """verl's own without servers."""

    async def launch_servers(self) -> None:
        """None."""
        return


Replica.__abstractmethods__ = frozenset()


def rollout_is_served(config: Any, made: dict[str, Any], world: int) -> None:
    """workers/rollout/replica.py; workers/rollout/vllm_rollout/vllm_async_server.py; vLLM 0.27: SamplingParams."""
    rollout = config.actor_rollout_ref.rollout
    size = rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
    sizes = (rollout.tensor_model_parallel_size, rollout.data_parallel_size, rollout.pipeline_model_parallel_size)
    need(
        all(whole(each) and each > 0 for each in sizes), "mesh of the rollout"
    )  # workers/engine_workers.py: init_model
    range(rollout.n)
    need(rollout.n > 0, "no answers")
    disaggregation = made["rollout"].disaggregation
    standalone = config.trainer.v1.trainer_mode == "separate_async"
    if disaggregation.enabled:
        served_in_two(disaggregation, rollout)
    else:
        replica = Replica(0, rollout, config.actor_rollout_ref.model, gpus_per_node=rollout.n_gpus_per_node)
        if not standalone:
            need(world % size == 0, f"{world} GPUs, replicas of {size}")
        if rollout.name == "vllm" and rollout.data_parallel_size > 1:
            local = replica.gpus_per_replica_node
            need(local % rollout.tensor_model_parallel_size == 0, "gpus_per_node should be divisible by tp")
    need(whole(rollout.checkpoint_engine.update_weights_bucket_megabytes << 20), "bucket")
    need(rollout.checkpoint_engine.update_weights_bucket_megabytes > 0, "bucket")
    range(rollout.agent.num_workers)
    need(rollout.agent.num_workers > 0, "no agent workers")
    [][: config.data.max_response_length]  # experimental/agent_loop/single_turn_agent_loop.py
    need(config.data.max_response_length > 0, "no answer")
    if rollout.name not in ("vllm", "sglang"):
        return
    need(rollout.dtype in ("auto", "half", "float16", "bfloat16", "float", "float32"), "dtype")
    need(0 < rollout.gpu_memory_utilization <= 1, "gpu_memory_utilization")
    allowed = ("fp8", "torchao", "ascend") if rollout.name == "vllm" else ("fp8",)
    need(rollout.quantization is None or rollout.quantization in allowed, "quantization")
    for name in ("max_model_len", "max_num_batched_tokens", "max_num_seqs"):
        need(rollout[name] is None or (whole(rollout[name]) and rollout[name] > 0), name)
    validates = config.trainer.get("val_before_train", True) or config.trainer.test_freq > 0
    for part in (rollout, rollout.val_kwargs) if validates else (rollout,):
        need(part.temperature >= 0 and 0 < part.top_p <= 1 and whole(part.top_k) and part.top_k >= -1, "sampling")
    if validates:
        need(whole(rollout.val_kwargs.n) and rollout.val_kwargs.n > 0, "val n")


def served_in_two(disaggregation: Any, rollout: Any) -> None:
    """workers/rollout/vllm_rollout/vllm_pd_replica.py and sglang_rollout/sglang_pd_replica.py: __init__."""
    if rollout.name == "vllm":
        need(disaggregation.transfer_backend in ("nixl", "mooncake"), "transfer_backend")
    need(disaggregation.prefill_replicas == 1 and rollout.data_parallel_size == 1, "prefill_replicas=1 only")
    decode = disaggregation.decode_tensor_model_parallel_size
    decode = rollout.tensor_model_parallel_size if decode is None else decode
    needed = rollout.tensor_model_parallel_size + disaggregation.decode_replicas * decode
    need(needed <= rollout.n_gpus_per_node, f"PD replica needs {needed} GPUs")


def pools_fit(config: Any, gpus: int) -> None:
    """single_controller/ray/base.py: ResourcePoolManager._check_resource_available; Ray waits for more."""
    wanted = config.trainer.nnodes * config.trainer.n_gpus_per_node
    if config.reward.reward_model.enable_resource_pool:
        wanted += config.reward.reward_model.nnodes * config.reward.reward_model.n_gpus_per_node
    if has_teacher(config):
        wanted += config.distillation.nnodes * config.distillation.n_gpus_per_node
    if config.trainer.v1.trainer_mode == "separate_async":
        rollout = config.actor_rollout_ref.rollout
        size = rollout.tensor_model_parallel_size * rollout.data_parallel_size
        pool = rollout.nnodes * rollout.n_gpus_per_node
        wanted += pool - pool % size
    need(wanted <= gpus, f"{wanted} GPUs of {gpus}")
