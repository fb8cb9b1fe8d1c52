"""Parallelism of training and of the rollout (verl 0.9.1)."""

from __future__ import annotations

from collections.abc import Iterator

from cloudrl.verl.keys import CRITIC, MODEL, ROLLOUT
from cloudrl.verl.override_parsing import Problem
from cloudrl.verl.setting import Setting

_ENGINES = ("fsdp", "fsdp2", "fsdp_turbo", "megatron", "veomni", "torchtitan")
_MAX_LORA_RANK = 512
"""workers/rollout/vllm_rollout/utils.py: get_vllm_max_lora_rank."""


def sequences_are_split(setting: Setting) -> Iterator[Problem]:
    """workers/config/actor.py: FSDPActorConfig.validate; workers/engine/fsdp/transformer_impl.py: __init__."""
    for role in setting.built:
        key, size = setting.sequence_parallel(role)
        if not setting.is_fsdp(role) or size <= 1:
            continue
        if setting.world_size % size:
            yield Problem(f"{setting.world_size} GPUs cannot be divided by {key}={size}",
                          f"{key}={_largest(size, setting.world_size)}")  # fmt: skip
        model = "critic.model" if role == CRITIC else MODEL
        if not setting.get(f"{model}.use_remove_padding"):
            yield Problem(f"{key}={size} needs {model}.use_remove_padding", f"{model}.use_remove_padding=True")


def shards_are_whole(setting: Setting) -> Iterator[Problem]:
    """workers/engine/fsdp/utils.py: create_device_mesh."""
    for role in setting.built:
        key = f"{role}.{'fsdp' if role == CRITIC else 'fsdp_config'}.fsdp_size"
        size = setting.whole(key)
        if setting.is_fsdp(role) and size and 0 < size < setting.world_size and setting.world_size % size:
            yield Problem(f"{setting.world_size} GPUs cannot be divided by {key}={size}", f"{key}=-1")


def _largest(size: int, gpus: int) -> int:
    """The largest size, up to one that does not fit, that divides the GPUs."""
    return next(each for each in range(min(size, gpus), 0, -1) if gpus % each == 0)


_SECTIONS = {"fsdp": "fsdp_config", "fsdp2": "fsdp_config", "fsdp_turbo": "fsdp_config"}
"""Where the engine of a strategy has its options; of others it is called like the strategy."""


def engines_have_their_sections(setting: Setting) -> Iterator[Problem]:
    """workers/engine_workers.py: __init__; workers/config/actor.py and critic.py, a class an engine."""
    for role in setting.built:
        strategy = str(setting.get(f"{role}.strategy"))
        section = "fsdp" if role == CRITIC and strategy in _SECTIONS else _SECTIONS.get(strategy, strategy)
        is_theirs = str(setting.get(f"{role}._target_")).startswith("verl.workers.config.")
        if is_theirs and strategy in _ENGINES and not setting.has(f"{role}.{section}"):
            engine = "dp" if strategy in _SECTIONS else strategy
            yield Problem(f"{role}.strategy={strategy} needs a section {role}.{section}, which this engine has not",
                          f"model_engine={engine}")  # fmt: skip


def rollout_is_possible(setting: Setting) -> Iterator[Problem]:
    """workers/config/rollout.py: __post_init__; utils/config.py: validate_config."""
    name, temperature = setting.get(f"{ROLLOUT}.name"), setting.get(f"{ROLLOUT}.temperature")
    tensor, data, pipeline, experts = (
        setting.whole(f"{ROLLOUT}.{each}_parallel_size") or 1
        for each in ("tensor_model", "data", "pipeline_model", "expert")
    )
    if name == "???":
        yield Problem(f"{ROLLOUT}.name is not set", f"{ROLLOUT}.name=vllm")
    if setting.get(f"{ROLLOUT}.mode") == "sync":
        yield Problem(f"{ROLLOUT}.mode=sync is gone", f"{ROLLOUT}.mode=async")
    if name != "trtllm" and experts > 1 and experts != tensor * data:
        key = f"{ROLLOUT}.expert_parallel_size"
        yield Problem(
            f"{key}={experts} is not tensor times data parallelism ({tensor * data})", f"{key}={tensor * data}"
        )
    if pipeline > 1 and name in ("vllm", "sglang", "trtllm"):
        key = f"{ROLLOUT}.pipeline_model_parallel_size"
        yield Problem(f"{key}={pipeline}: verl has none with {name}", f"{key}=1")
    is_greedy = isinstance(temperature, (int, float)) and temperature <= 0
    if setting.get(f"{ROLLOUT}.val_kwargs.do_sample") and is_greedy:
        samples = f"{ROLLOUT}.val_kwargs.do_sample"
        yield Problem(f"{samples} needs {ROLLOUT}.temperature above 0", f"{samples}=False")
    rank = 0 if setting.get(f"{MODEL}.lora.merge") else setting.lora_rank
    if name == "vllm" and rank > _MAX_LORA_RANK:
        key = f"{MODEL}.lora.rank" if setting.whole(f"{MODEL}.lora.rank") == rank else f"{MODEL}.lora_rank"
        yield Problem(f"LoRA of rank {rank}: vLLM takes {_MAX_LORA_RANK} at most", f"{key}={_MAX_LORA_RANK}")


def replicas_fit(setting: Setting) -> Iterator[Problem]:
    """workers/rollout/replica.py: __init__; workers/engine_workers.py: init_model, where training has the GPUs too."""
    replica, per_node = setting.replica, setting.rollout_gpus_per_node
    key = f"{ROLLOUT}.tensor_model_parallel_size"
    tensor = max(1, setting.whole(key) or 1)
    if replica > per_node and replica % per_node:
        others = replica // tensor
        yield Problem(f"a replica of the rollout takes {replica} GPUs, not a number of whole nodes with {per_node}",
                      f"{key}={per_node // others}" if per_node % others == 0 else "")  # fmt: skip
        return
    has_own_gpus = setting.whole(f"{ROLLOUT}.nnodes") or setting.get(f"{ROLLOUT}.disaggregation.enabled")
    if not has_own_gpus and setting.world_size % replica:
        room, rest = divmod(setting.world_size, replica // tensor)
        fits = 0 if rest else _largest(replica, room)
        yield Problem(f"a replica of the rollout takes {replica} GPUs, which do not divide {setting.world_size}",
                      f"{key}={fits}" if fits else "")  # fmt: skip


RULES = (
    sequences_are_split,
    shards_are_whole,
    rollout_is_possible,
    replicas_fit,
    engines_have_their_sections,
)
