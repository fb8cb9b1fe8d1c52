"""Host memory, `/dev/shm` and disk that a job needs.

Sources: verl 0.9.1, utils/fsdp_utils.py, workers/engine/fsdp/transformer_impl.py, utils/fs.py,
workers/rollout/vllm_rollout/vllm_async_server.py; docs/memory.md.
"""

from __future__ import annotations

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
_PINNED = Amount(1, 1, 1.4)
"""Copies to the host are pinned, and PyTorch rounds pinned memory up."""
_STARTING = 0.4
"""The part of their memory that processes have while models are loaded."""
NODE_MEMORY, SHARED_MEMORY = "memory of a node", "/dev/shm"  # noqa: S108  a name, for messages
DISK = "disk"
"""The group of the phase that writes a checkpoint."""
_BF16 = 2
KILLED_AT = 0.95
"""Ray's monitor kills workers at so much of a node's memory (Ray 2.60: RAY_memory_usage_threshold)."""
_MEGATRON_BYTES, _CPU_ADAM_BYTES, _POLICY_COPIES = 14, 14, 4
_UNKNOWN = Amount.exact(float("inf"))


def host_phases(trainer: Trainer) -> Iterator[Phase]:
    """The fullest node, and a checkpoint."""
    yield _host(trainer)
    if trainer.machine.shm_gib is not None or trainer.work.uses_shm:
        yield _shm(trainer)
    yield _disk(trainer)


def _host(trainer: Trainer) -> Phase:
    work, model, actor = trainer.work, trainer.model, trainer.work.actor
    has_engine = work.engine is not None
    base = _NODE_GIB + _GPU_GIB * work.gpus if has_engine else _ALONE_NODE_GIB + _ALONE_GPU_GIB * work.gpus
    weights = model.counts.total * actor.weight_bytes / GIB
    node = 1 / work.nodes
    reference = weights * node if work.reference == "host" else 0.0
    critic = _offloaded(trainer.critic_model, work.critic) if work.critic is not None else 0.0
    offloaded = node * (_offloaded(model, actor) + critic)
    asleep = 0.0
    if actor.lora_rank and work.engine is not None:  # vLLM keeps the base model's weights in host memory then
        asleep = engine_weights(model, work.engine) * work.gpus
    processes = _PROCESSES * base
    loading = _loading(model, actor, work.gpus) - (base * (1 - _STARTING) + reference + offloaded + asleep)
    limit = trainer.machine.host_gib
    terms = [
        ("processes", processes),
        ("reference model", Amount(1, 1, 1.3) * reference),
        ("offloaded states", _PINNED * offloaded),
        ("weights of an engine that sleeps", Amount.exact(asleep)),
        ("while loading", Amount(0.5, 1, 1.2) * max(0.0, loading)),
    ]
    return phase("host", NODE_MEMORY, _UNKNOWN if limit is None else Amount.exact(KILLED_AT * limit), terms)


def _loading(model: ModelConfig, actor: Trainee, gpus: int) -> float:
    """Every rank loads all weights where embeddings are tied, else one rank of a node does."""
    weights = model.counts.total * actor.weight_bytes / GIB
    ranks = gpus if model.is_tied and not actor.is_megatron else 1
    return weights * ranks + model.counts.total * _BF16 / GIB / 2


def _offloaded(model: ModelConfig, actor: Trainee) -> float:
    """GiB of a model in the memory of all nodes."""
    total, each = model.counts.total, actor.weight_bytes
    if actor.steps_on_cpu:
        return _POLICY_COPIES * total * each / GIB
    found = 0.0 if actor.keeps_weights else total * each
    if actor.has_cpu_adam:
        found += _CPU_ADAM_BYTES * total
    elif not actor.keeps_optimizer:
        found += trained_parameters(model, actor) * actor.moment_bytes
    return found / GIB


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
