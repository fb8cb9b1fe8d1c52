"""How many bytes a step of training moves between nodes, as far as FSDP shards a model over several of them. Pure.

FSDP gathers the weights in bf16 before each pass over a micro-batch, and in the backward pass once more, and sums the
gradients in fp32, which each micro-batch does (verl 0.9.1, trainer/config/engine/fsdp.yaml:
use_no_sync_for_gradient_accumulation is off). In a ring of all GPUs, all of it enters each node once.
"""

from __future__ import annotations

import math

from cloudrl.verl.memory.verdict import Estimate
from cloudrl.verl.memory.workload import Lengths, MicroBatch, Trainee

_WEIGHT_BYTES, _GRADIENT_BYTES = 2, 4


def step_traffic_bytes(estimate: Estimate) -> float | None:
    """Bytes that enter each node in a step.

    None where no weights are sharded over several nodes: one node, FSDP within each node, Megatron.
    """
    work = estimate.work
    trained = [(work.actor, estimate.model.counts.total)]
    if work.critic is not None:
        trained.append((work.critic, estimate.critic_model.counts.total))
    if work.nodes < 2 or any(each.is_megatron or each.shard <= work.gpus for each, _ in trained):
        return None
    total = 0.0
    for trainee, parameters in trained:
        gradients = 0 if trainee.lora_rank else _GRADIENT_BYTES
        update_rows = min(work.batch_rows, max(1, trainee.rows_per_update))
        updates = work.batch_rows / update_rows
        micro_batches = updates * _micro_batches(trainee, trainee.update, update_rows, work.lengths)
        total += parameters * micro_batches * (2 * _WEIGHT_BYTES + gradients)
    forward_only = 1 + bool(work.reference) if work.engine is not None else 0
    passes = _micro_batches(work.actor, work.actor.log_probs, work.batch_rows, work.lengths)
    for_the_rollout = _WEIGHT_BYTES * (work.engine is not None)
    return total + estimate.model.counts.total * (forward_only * passes * _WEIGHT_BYTES + for_the_rollout)


def _micro_batches(trainee: Trainee, batch: MicroBatch, rows: int, lengths: Lengths) -> int:
    """That a GPU computes for so many sequences of all GPUs."""
    here = rows / trainee.replicas
    if batch.tokens is None:
        return max(1, math.ceil(here / max(1, batch.rows)))
    limit = max(batch.tokens * trainee.split, lengths.longest)
    return max(1, math.ceil(here * lengths.usual.likely / limit))
