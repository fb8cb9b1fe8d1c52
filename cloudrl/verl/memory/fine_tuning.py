"""What verl's supervised fine-tuning does with memory, and the overrides that make it fit.

verl 0.9.1, trainer/sft_trainer.py and sft_trainer_ray.py: the engine that trains an actor of `main_ppo`, without a
rollout, a reference model and a critic. It computes no entropy and divides no logits (temperature 1).

verl 0.7.0, trainer/fsdp_sft_trainer.py: FSDP without an engine. Rows are padded to `data.max_length` unless sequences
are split over GPUs, nothing is offloaded, and the loss is torch's own, in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from cloudrl.verl import keys
from cloudrl.verl.memory.amount import Phase
from cloudrl.verl.memory.reading import NotModelled, Sections, lora_rank, trainee_of
from cloudrl.verl.memory.remedies import BF16, MOST_NODES, smaller_sizes
from cloudrl.verl.memory.verdict import Estimate
from cloudrl.verl.memory.workload import Lengths, MicroBatch, Trainee, Workload
from cloudrl.verl.setting import Setting, applied

_MODELLED = ("fsdp", "fsdp2", "megatron")
_MEGATRON = "McoreEngineConfig"
"""Its YAML names no strategy: the dataclass does (verl 0.9.1, workers/config/engine.py)."""
_LOADERS = 8
"""Processes that read data where no key says how many."""
_SPLIT, _SPLIT_WITHOUT_ENGINE = "engine.ulysses_sequence_parallel_size", "ulysses_sequence_parallel_size"


def has_engine(setting: Setting) -> bool:
    """Whether it is the trainer on verl's engines (since verl 0.7), not the one before it."""
    return isinstance(setting.get("engine"), Mapping)


def sections_of(setting: Setting) -> Sections:
    """Where a configuration of fine-tuning says what."""
    if not has_engine(setting):
        return Sections(
            str(setting.get("model.strategy")), "model.fsdp_config", "model", "optim", _SPLIT_WITHOUT_ENGINE
        )
    named = setting.get("engine.strategy")
    if named is None and str(setting.get("engine._target_")).endswith(_MEGATRON):
        named = "megatron"
    return Sections(str(named), "engine", "model", "optim", _SPLIT)


def limit_of(setting: Setting) -> Lengths:
    """How long a conversation may be: all of it counts as the prompt, since nothing is generated."""
    return Lengths(setting.whole("data.max_length") or 1024, 0)


def on_gpus(setting: Setting, gpus: int | None) -> Setting:
    """The same with the GPUs that its processes have: `torchrun` says how many, and no key of the configuration.

    Args:
        setting: the configuration.
        gpus: of all nodes together; None where the command does not tell, so that the configuration counts.
    """
    if not gpus:
        return setting
    each = min(gpus, setting.gpus_per_node)
    return applied(setting, {keys.NODES: max(1, gpus // each), keys.GPUS: each})


def fine_tuning_workload(setting: Setting, lengths: Lengths | None = None, *, on_ray: bool = False) -> Workload:
    """Read a composed configuration. A checkpoint is written after the last step, whatever it says.

    Args:
        setting: the configuration, with the GPUs that train.
        lengths: where the mean is known; None for the limit alone.
        on_ray: whether `sft_trainer_ray` trains.

    Raises:
        NotModelled: Another engine trains.
    """
    sections = sections_of(setting)
    if sections.strategy not in _MODELLED:
        raise NotModelled(f"the memory of strategy {sections.strategy} is not modelled")
    return Workload(
        actor=_trainee(setting, sections),
        lengths=lengths or limit_of(setting),
        nodes=max(1, setting.world_size // setting.gpus_per_node),
        gpus=setting.gpus_per_node,
        batch_rows=setting.whole("data.train_batch_size") or 1,
        first_step_only=setting.whole(keys.STEPS) == 1,
        uses_shm=bool(setting.get("model.use_shm")),
        loader_processes=_loader_processes(setting, on_ray=on_ray),
    )


def _trainee(setting: Setting, sections: Sections) -> Trainee:
    is_engine = has_engine(setting)
    tokens = setting.whole("data.max_token_len_per_gpu") if setting.get("data.use_dynamic_bsz") else None
    batch = MicroBatch(rows=setting.whole("data.micro_batch_size_per_gpu") or 1, tokens=tokens)
    saved = setting.get("checkpoint.save_contents" if is_engine else "trainer.checkpoint.save_contents")
    trainee = trainee_of(
        setting,
        sections,
        lora_rank=lora_rank(setting, "model"),
        fuses_head=is_engine and bool(setting.get("model.use_fused_kernels")),
        rows_per_update=setting.whole("data.train_batch_size") or 1,
        update=batch,
        log_probs=batch,
        save=tuple(map(str, saved or ())),
    )
    if is_engine:
        return trainee
    unpads = bool(setting.get("use_remove_padding")) and trainee.split > 1
    return replace(trainee, has_torch_loss=True, removes_padding=unpads, pads_to_limit=not unpads)


def _loader_processes(setting: Setting, *, on_ray: bool) -> int:
    """Processes of a node that read data, for training and for validation (verl 0.9.1, _build_dataloader of both).

    On Ray the driver alone has them, eight whatever is set; without Ray each process of training has its own.
    """
    count = None if on_ray else setting.whole("data.num_workers")
    each = (_LOADERS if count is None else count) * (2 if setting.get(keys.VAL_FILES) else 1)
    return each if on_ray else each * setting.gpus_per_node


def fine_tuning_changes(
    setting: Setting, estimate: Estimate, worst: Phase, *, on_ray: bool = False
) -> Iterator[dict[str, object]]:
    """What may help a phase, the cheapest first.

    Args:
        setting: the configuration.
        estimate: what it needs.
        worst: the phase with the least room.
        on_ray: whether more nodes train with it as it is; `torchrun` has its number in its own options.
    """
    actor, nodes = estimate.work.actor, estimate.work.nodes
    is_engine, is_fsdp = has_engine(setting), not actor.is_megatron
    if worst.group == "update":
        yield from _smaller_batches(setting, estimate)
    if is_fsdp and actor.removes_padding:
        yield {sections_of(setting).split: actor.split * 2}
    if is_engine and is_fsdp and actor.shard < actor.world:
        yield {"engine.fsdp_size": -1}
    if is_fsdp and actor.lora_rank and actor.weight_bytes > BF16:  # the base model is frozen: its precision is enough
        yield {f"{sections_of(setting).engine}.model_dtype": "bfloat16"}
    elif is_engine and is_fsdp and not actor.steps_on_cpu and not actor.lora_rank:
        yield {"engine.strategy": "fsdp2", "engine.offload_policy": True}
    if is_engine and not is_fsdp and actor.tensor < setting.gpus_per_node:
        yield {"engine.tensor_model_parallel_size": actor.tensor * 2}
    if on_ray and nodes * 2 <= MOST_NODES:
        yield {keys.NODES: nodes * 2}


def _smaller_batches(setting: Setting, estimate: Estimate) -> Iterator[dict[str, object]]:
    work, actor = estimate.work, estimate.work.actor
    batch, longest = actor.update, math.ceil(work.lengths.longest / actor.split)
    if not actor.checkpoints and not actor.is_megatron:
        yield {"model.enable_gradient_checkpointing": True}
    if batch.tokens is not None and batch.tokens > longest:
        yield {"data.max_token_len_per_gpu": max(batch.tokens // 2, longest)}
    elif batch.tokens is None:
        rows = max(1, actor.rows_per_update // actor.replicas)
        for size in smaller_sizes(batch, rows):
            yield {"data.micro_batch_size_per_gpu": size}
    if has_engine(setting) and not actor.fuses_head and not actor.is_megatron:
        yield {"model.use_fused_kernels": True}
