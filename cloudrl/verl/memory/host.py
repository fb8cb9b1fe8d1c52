"""Host memory, `/dev/shm` and disk that a job needs.

Sources: verl 0.9.1, utils/fsdp_utils.py, workers/engine/fsdp/transformer_impl.py, utils/fs.py,
workers/rollout/vllm_rollout/vllm_async_server.py; docs/memory.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from cloudrl.verl.memory.amount import GIB, Amount, Phase, phase
from cloudrl.verl.memory.rollout import engine_weights
from cloudrl.verl.memory.states import trained_parameters
from cloudrl.verl.memory.training import Trainer
from cloudrl.verl.memory.workload import Trainee
from cloudrl.verl.model_config import ModelConfig

_NODE_GIB, _GPU_GIB = 18.0, 6.0
"""Of a node, and of each of its GPUs: trainer, engine worker, engine core, agent loops, Ray."""
_ALONE_NODE_GIB, _ALONE_GPU_GIB = 8.0, 4.0
"""The same without a rollout."""
_PROCESSES = Amount(0.6, 1, 1.7)
_PINNED = Amount(1, 1.35, 2)
"""Copies to the host are pinned, and PyTorch takes a power of two for each (ATen/core/CachingHostAllocator.h); it keeps
the blocks when the states are on the GPU again. Tensors of public models, sharded, take so many times their size."""
_LOADER_GIB = Amount(0.03, 0.1, 0.5)
"""Of a process that reads data: what it does not share with the one that has started it. 0.015 was measured with small
rows; Python copies what it touches of larger ones."""
_STARTING = 0.4
"""The part of their memory that processes have while models are loaded."""
NODE_MEMORY, SHARED_MEMORY = "memory of a node", "/dev/shm"  # noqa: S108  a name, for messages
DISK = "disk"
"""The group of the phase that writes a checkpoint."""
_BF16 = 2
KILLED_AT = 0.95
"""Ray's monitor kills workers at so much of a node's memory (Ray 2.60: RAY_memory_usage_threshold)."""
_MEGATRON_BYTES = 14
_CPU_ADAM_PINNED, _CPU_ADAM_MOMENTS = 8, 8
"""Bytes of a parameter: master weight and gradient, which are pinned, and both moments (megatron-core,
optimizer/cpu_offloading/hybrid_optimizer.py)."""
_UNKNOWN = Amount.exact(float("inf"))


def host_phases(trainer: Trainer) -> Iterator[Phase]:
    """The fullest node, and a checkpoint."""
    yield _host(trainer)
    if trainer.machine.shm_gib is not None or trainer.work.uses_shm:
        yield _shm(trainer)
    if trainer.work.saves:
        yield _disk(trainer)


def _host(trainer: Trainer) -> Phase:
    work, model, actor = trainer.work, trainer.model, trainer.work.actor
    has_engine = work.engine is not None
    base = _NODE_GIB + _GPU_GIB * work.gpus if has_engine else _ALONE_NODE_GIB + _ALONE_GPU_GIB * work.gpus
    weights = model.counts.total * actor.weight_bytes / GIB
    node = 1 / work.nodes
    reference = weights * node if work.reference == "host" else 0.0
    offloaded = _offloaded(model, actor) * node
    if work.critic is not None:
        offloaded += _offloaded(trainer.critic_model, work.critic) * node
    asleep = 0.0
    if actor.lora_rank and work.engine is not None:  # vLLM keeps the base model's weights in host memory then
        asleep = engine_weights(model, work.engine) * work.gpus
    steady = base + reference + offloaded.likely + asleep
    loading = _loading(model, actor, work.gpus) + _STARTING * base - steady
    saving = _copied_by_a_save(model, actor, work.nodes) if work.saves else 0.0
    limit = trainer.machine.host_gib
    terms = [
        ("processes", _PROCESSES * base),
        ("processes that read data", _LOADER_GIB * work.loader_processes),
        ("reference model", Amount(1, 1, 1.3) * reference),
        ("offloaded states", offloaded),
        ("weights of an engine that sleeps", Amount.exact(asleep)),
        ("policy before the step", Amount.exact(work.policy_copies * weights * node)),
        ("copies of a save", Amount(0, 1, 1) * saving),
        ("while loading", Amount(0.5, 1, 1.2) * max(0.0, loading - saving)),
    ]
    return phase("host", NODE_MEMORY, _UNKNOWN if limit is None else Amount.exact(KILLED_AT * limit), terms)


def _loading(model: ModelConfig, actor: Trainee, gpus: int) -> float:
    """Every rank loads all weights where embeddings are tied, else one rank of a node does (utils/fsdp_utils.py).

    Megatron's bridges read a tensor at a time.
    """
    if actor.is_megatron:
        return 0.0
    weights = model.counts.total * actor.weight_bytes / GIB
    return weights * (gpus if model.is_tied else 1) + model.counts.total * _BF16 / GIB / 2


def _offloaded(model: ModelConfig, actor: Trainee) -> Amount:
    """GiB of a model in the memory of all nodes."""
    total, each, rounded = model.counts.total / GIB, actor.weight_bytes, _rounded(model, actor)
    if actor.steps_on_cpu:  # weights and gradients are pinned, both moments of Adam are not
        return rounded * (2 * total * each) + Amount.exact(2 * total * each)
    found = rounded * (0.0 if actor.keeps_weights else total * each)
    if actor.has_cpu_adam:
        return found + rounded * (_CPU_ADAM_PINNED * total) + Amount.exact(_CPU_ADAM_MOMENTS * total)
    moments = 0.0 if actor.keeps_optimizer else trained_parameters(model, actor) / GIB * actor.moment_bytes
    return found + rounded * moments


def _rounded(model: ModelConfig, actor: Trainee) -> Amount:
    """How many times more PyTorch takes of pinned memory than a copy has: a block is a power of two.

    FSDP1 copies the shards of a layer at once, and the rest of the model at once (utils/fsdp_utils.py); others copy
    tensor by tensor.
    """
    if actor.engine != "fsdp" or actor.lora_rank:
        return _PINNED
    counts, share = model.counts, actor.weight_bytes / actor.shard
    units = [each * share for each in (*counts.layers, counts.total - sum(counts.layers)) if each > 0]
    factor = sum(2 ** math.ceil(math.log2(unit)) for unit in units if unit > 1) / sum(units)
    return Amount(1, factor, factor)


def _copied_by_a_save(model: ModelConfig, actor: Trainee, nodes: int) -> float:
    """GiB of weights in host memory while a node saves (utils/checkpoint/fsdp_checkpoint_manager.py).

    FSDP1 copies the shards of the model to the host; for a model in Hugging Face's format rank 0 gathers all of it. The
    optimizer's states are written one by one.
    """
    weights = model.counts.total * actor.weight_bytes / GIB
    shards = weights / nodes if actor.engine == "fsdp" and "model" in actor.save else 0.0
    return shards + (weights if "hf_model" in actor.save and not actor.is_megatron else 0.0)


def _shm(trainer: Trainer) -> Phase:
    """Weights that are copied there; Ray's object store is there, too, and grows as it is used."""
    copied = _BF16 * trainer.model.counts.total / GIB if trainer.work.uses_shm else 0.0
    limit = trainer.machine.shm_gib
    terms = [("weights (use_shm)", Amount.exact(copied)), ("Ray's object store", Amount(1, 2, 8))]
    return phase("host", SHARED_MEMORY, _UNKNOWN if limit is None else Amount.exact(limit), terms)


def _disk(trainer: Trainer) -> Phase:
    """One checkpoint of all nodes together."""
    terms = [("actor", Amount.exact(checkpoint_gib(trainer.model, trainer.work.actor)))]
    if trainer.work.critic is not None:
        terms.append(("critic", Amount.exact(checkpoint_gib(trainer.critic_model, trainer.work.critic))))
    limit = trainer.machine.disk_gib
    return phase(DISK, "a checkpoint", _UNKNOWN if limit is None else Amount.exact(limit), terms)


def checkpoint_gib(model: ModelConfig, trainee: Trainee) -> float:
    """GiB of one checkpoint, on all nodes together."""
    total, parts = model.counts.total, trainee.save
    each = trainee.weight_bytes
    trained = trained_parameters(model, trainee)
    found = total * each if "model" in parts else 0.0
    if "optimizer" in parts:
        found += trained * (_MEGATRON_BYTES - _BF16 if trainee.is_megatron else trainee.moment_bytes)
    if "hf_model" in parts:
        found += total * _BF16
    return found / GIB
