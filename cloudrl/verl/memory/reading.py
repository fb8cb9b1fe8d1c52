"""The workload that a composed configuration of verl describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloudrl.verl.async_modes import SYNC_STEP
from cloudrl.verl.keys import ACTOR, CRITIC, MODEL, REF, ROLLOUT, SAVE_FREQ
from cloudrl.verl.memory.workload import Engine, Lengths, MicroBatch, Trainee, Workload
from cloudrl.verl.setting import BATCH, MODE, Setting

_DTYPE_BYTES = {"fp32": 4, "float32": 4, "float": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "half": 2}
_REWARD = "reward.reward_model"


class NotModelled(Exception):
    """Why no estimate is possible, as half a sentence."""


def workload_of(setting: Setting, lengths: Lengths | None = None) -> Workload:
    """Read a composed configuration.

    Args:
        setting: the configuration.
        lengths: where the mean is known; None for the limits alone.

    Raises:
        NotModelled: Another engine trains.
    """
    prompt, response = (setting.whole(f"data.max_{each}_length") or 512 for each in ("prompt", "response"))
    reads_reference = setting.uses_reference and not setting.reference_is_actor
    return Workload(
        actor=_trainee(setting, ACTOR),
        critic=_trainee(setting, CRITIC) if setting.uses_critic else None,
        reference=_reference(setting) if reads_reference else "",
        engine=_engine(setting, ROLLOUT),
        reward=_engine(setting, f"{_REWARD}.rollout") if _has_reward_engine(setting) else None,
        nodes=max(1, setting.world_size // setting.gpus_per_node),
        gpus=setting.gpus_per_node,
        batch_rows=(setting.whole(BATCH) or 1) * setting.rollout_n,
        lengths=lengths or Lengths(prompt, response),
        first_step_only=setting.whole("trainer.total_training_steps") == 1,
        uses_shm=bool(setting.get(f"{MODEL}.use_shm")),
        saves=(setting.whole(SAVE_FREQ) or 0) > 0,
        policy_copies=_policy_copies(setting),
    )


def _policy_copies(setting: Setting) -> int:
    """That of before the step, and beside it the current one (trainer/ppo/v1/trainer_separate_async.py)."""
    if not setting.is_v1 or setting.get(MODE) != "separate_async":
        return 0
    if setting.get("algorithm.rollout_correction.bypass_mode"):
        return 0
    return 2 if (setting.whole(SYNC_STEP) or 1) > 1 else 1


def engine_section(setting: Setting, role: str) -> str:
    """The section of a role with its sharding and offload.

    Raises:
        NotModelled: An engine trains it whose memory is not modelled.
    """
    strategy = setting.get(f"{role}.strategy")
    if strategy == "megatron":
        return f"{role}.megatron"
    if setting.is_fsdp(role):
        return f"{role}.{'fsdp' if role == CRITIC else 'fsdp_config'}"
    raise NotModelled(f"the memory of strategy {strategy} is not modelled")


@dataclass(frozen=True)
class Sections:
    """What trains a model, and where the configuration has what decides its memory.

    Attributes:
        strategy: the engine that trains it: `fsdp`, `fsdp2`, `megatron`.
        engine: the section with sharding and offload.
        model: the section with the path of the model.
        optimizer: the section of the optimizer.
        split: the key with the number of GPUs that share one sequence, with FSDP.
    """

    strategy: str
    engine: str
    model: str
    optimizer: str
    split: str


def trainee_of(setting: Setting, sections: Sections, **own: Any) -> Trainee:
    """A model that is trained, from the sections that all of verl's trainers share.

    Args:
        setting: the configuration.
        sections: where it says what.
        own: fields of `Trainee` that a trainer has in places of its own.
    """
    section = sections.engine
    is_megatron = sections.strategy == "megatron"
    dtype = "bf16" if is_megatron else str(setting.get(f"{section}.model_dtype") or "fp32")
    weight_bytes = _DTYPE_BYTES.get(dtype.lower(), 4)
    padding = setting.get(f"{section if is_megatron else sections.model}.use_remove_padding")
    moments, uses_foreach = _moments(setting, sections, weight_bytes)
    shared = dict[str, Any](
        engine=sections.strategy,
        world=setting.world_size,
        weight_bytes=weight_bytes,
        moment_bytes=moments,
        uses_foreach=uses_foreach,
        keeps_weights=not setting.get(f"{section}.param_offload"),
        keeps_optimizer=not setting.get(f"{section}.optimizer_offload"),
        removes_padding=padding is not False,
    )
    sharded = (_megatron if is_megatron else _fsdp)(setting, sections)
    return Trainee(**{**shared, **sharded, **own})


def _trainee(setting: Setting, role: str) -> Trainee:
    section = engine_section(setting, role)
    model = MODEL if role == ACTOR else f"{CRITIC}.model"
    split = setting.sequence_parallel(role)[0]
    return trainee_of(
        setting,
        Sections(str(setting.get(f"{role}.strategy")), section, model, f"{role}.optim", split),
        lora_rank=lora_rank(setting, model),
        rows_per_update=(setting.whole(f"{role}.ppo_mini_batch_size") or 1) * setting.rollout_n,
        update=_micro(setting, role, "ppo"),
        save=tuple(map(str, setting.get(f"{role}.checkpoint.save_contents") or ())),
        **(_head(setting, section) if role == ACTOR else {"log_probs": _micro(setting, role, "ppo")}),
    )


def _fsdp(setting: Setting, sections: Sections) -> dict[str, Any]:
    section = sections.engine
    size, world = setting.whole(f"{section}.fsdp_size") or -1, setting.world_size
    is_second = sections.strategy == "fsdp2"
    return {
        "shard": size if 0 < size < world else world,
        "steps_on_cpu": is_second and bool(setting.get(f"{section}.offload_policy")),
        "has_whole_gradients": is_second and bool(setting.get(f"{section}.use_no_sync_for_gradient_accumulation")),
        "split": setting.whole(sections.split) or 1,
        "checkpoints": bool(setting.get(f"{sections.model}.enable_gradient_checkpointing")),
        "offloads_activations": bool(setting.get(f"{sections.model}.enable_activation_offload")),
    }


def _megatron(setting: Setting, sections: Sections) -> dict[str, Any]:
    section = sections.engine
    tensor, pipeline, expert, context = (
        setting.whole(f"{section}.{each}_parallel_size") or 1
        for each in ("tensor_model", "pipeline_model", "expert_model", "context")
    )
    recompute = setting.get(f"{section}.override_transformer_config.recompute_granularity")
    return {
        "shard": setting.world_size,
        "tensor": tensor,
        "pipeline": pipeline,
        "expert": expert,
        "expert_tensor": _expert_tensor(setting, section, tensor, pipeline * expert),
        "has_virtual_stages": bool(setting.whole(f"{section}.virtual_pipeline_model_parallel_size")),
        "split": context,
        "checkpoints": recompute == "full",
        "has_cpu_adam": bool(setting.get(f"{sections.optimizer}.override_optimizer_config.optimizer_cpu_offload")),
    }


def _expert_tensor(setting: Setting, section: str, tensor: int, others: int) -> int:
    """Without a value it is the tensor parallelism (megatron-core 0.14, parallel_state.py), where that is possible."""
    size = setting.whole(f"{section}.expert_tensor_parallel_size")
    return size or (tensor if setting.world_size % (tensor * others) == 0 else 1)


def _head(setting: Setting, section: str) -> dict[str, Any]:
    """What decides the memory of logits and entropy, of the actor alone."""
    temperature = setting.get(f"{ROLLOUT}.temperature")
    return {
        "fuses_head": bool(setting.get(f"{MODEL}.use_fused_kernels")),
        "chunks_entropy": bool(setting.get(f"{section}.entropy_from_logits_with_chunking")),
        "compiles_entropy": setting.get(f"{section}.use_torch_compile") is not False,
        "has_entropy": bool(setting.get(f"{ACTOR}.entropy_coeff") or setting.get(f"{ACTOR}.calculate_entropy")),
        "scales_logits": isinstance(temperature, (int, float)) and temperature not in (1, 0),
        "log_probs": _micro(setting, ROLLOUT, "log_prob"),
    }


def _micro(setting: Setting, role: str, prefix: str) -> MicroBatch:
    """Of an update (`ppo`) or of log-probs."""
    is_log_prob = prefix == "log_prob"
    if setting.get(f"{role}.{'log_prob_' if is_log_prob else ''}use_dynamic_bsz"):
        return MicroBatch(tokens=setting.whole(f"{role}.{prefix}_max_token_len_per_gpu") or 16384)
    of_each = setting.whole(f"{role}.{prefix}_micro_batch_size_per_gpu")
    of_all = setting.whole(f"{role}.{prefix}_micro_batch_size")
    return MicroBatch(rows=of_each or max(1, (of_all or 1) // setting.world_size))


def _moments(setting: Setting, sections: Sections, weight_bytes: int) -> tuple[int, bool]:
    """Bytes of the optimizer's moments per parameter, and whether it makes a copy of all parameters at its step."""
    name = str(setting.get(f"{sections.optimizer}.optimizer") or "AdamW").lower()
    if "8bit" in name:
        return 2, False
    return (0 if name == "sgd" else 2 * weight_bytes), name in ("adam", "adamw")


def lora_rank(setting: Setting, model: str) -> int:
    """The rank of the adapter of a model, by its section; 0 without one."""
    if model == MODEL:
        return setting.lora_rank
    ranks = (setting.whole(f"{model}.{each}") or 0 for each in ("lora.rank", "lora_rank"))
    return next(filter(None, ranks), 0)


def _reference(setting: Setting) -> str:
    """FSDP keeps it in host memory whatever is set (verl 0.9.1, workers/engine/fsdp/transformer_impl.py)."""
    stays = setting.get(f"{REF}.strategy") == "megatron" and not setting.get(f"{REF}.megatron.param_offload")
    return "gpu" if stays else "host"


def _has_reward_engine(setting: Setting) -> bool:
    """Whether a reward model has a server on the GPUs of training."""
    return bool(setting.get(f"{_REWARD}.enable")) and not setting.get(f"{_REWARD}.enable_resource_pool")


def _engine(setting: Setting, section: str) -> Engine | None:
    share = setting.get(f"{section}.gpu_memory_utilization")
    own_gpus = section == ROLLOUT and setting.get(MODE) == "separate_async" and setting.is_v1
    bucket = setting.whole(f"{section}.checkpoint_engine.update_weights_bucket_megabytes")
    if not isinstance(setting.get(section), Mapping):
        return None
    return Engine(
        name=str(setting.get(f"{section}.name")),
        tensor=max(1, setting.whole(f"{section}.tensor_model_parallel_size") or 1),
        weight_bytes=1 if setting.get(f"{section}.quantization") == "fp8" else 2,
        share=float(share) if isinstance(share, (int, float)) else 0.5,
        max_length=setting.whole(f"{section}.max_model_len"),
        max_rows=setting.whole(f"{section}.max_num_seqs") or 256,
        max_tokens=setting.whole(f"{section}.max_num_batched_tokens") or 8192,
        sleeps=setting.get(f"{section}.free_cache_engine") is not False,
        is_colocated=not own_gpus,
        bucket_gib=(2048 if bucket is None else bucket) / 1024,
    )
