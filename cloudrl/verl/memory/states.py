"""Weights, gradients and optimizer states of a model on one GPU, sharded by FSDP or Megatron.

Sources: verl 0.9.1, workers/engine/fsdp/transformer_impl.py, workers/engine/megatron/transformer_impl.py,
utils/fsdp_utils.py; docs/memory.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cloudrl.verl.memory.amount import GIB
from cloudrl.verl.memory.workload import Trainee
from cloudrl.verl.model_config import ModelConfig

_MEGATRON_GRADIENT, _MEGATRON_OPTIMIZER = 4, 12
"""Bytes of a parameter: gradients are fp32; master weights and both moments of Adam are fp32."""
_COMPUTED = 2
"""Bytes of a weight while FSDP computes with it: bf16."""


@dataclass(frozen=True)
class States:
    """GiB on one GPU.

    Attributes:
        weights: master weights.
        gradients: of what is trained.
        optimizer: its states, from the end of the first step on.
        step_copy: what the optimizer's step makes for its duration: `sqrt(exp_avg_sq)` of all parameters at once.
        root: embeddings and head, unsharded while FSDP1 computes.
        layer: one layer, unsharded.
        units: what is unsharded of layers while FSDP computes.
        head_gradient: of the output head, while its logits are there.
        root_gradients: gradients of the embeddings before they are reduced.
        unsharded_gradients: of all parameters, where they accumulate without synchronisation.
        largest: the largest tensor, in full.
    """

    weights: float
    gradients: float
    optimizer: float
    step_copy: float
    root: float = 0.0
    layer: float = 0.0
    units: float = 0.0
    head_gradient: float = 0.0
    root_gradients: float = 0.0
    unsharded_gradients: float = 0.0
    largest: float = 0.0


def states_of(model: ModelConfig, trainee: Trainee) -> States:
    """What a GPU has of a model.

    Raises:
        CheckpointError: config.json does not tell the sizes.
    """
    return _megatron(model, trainee) if trainee.is_megatron else _fsdp(model, trainee)


def trained_parameters(model: ModelConfig, trainee: Trainee) -> float:
    """How many parameters have gradients."""
    return adapter_parameters(model, trainee) if trainee.lora_rank else model.counts.total


def adapter_parameters(model: ModelConfig, trainee: Trainee) -> float:
    """Of LoRA: its rank times inputs and outputs of each linear map."""
    return float(trainee.lora_rank * model.counts.low_rank)


def _fsdp(model: ModelConfig, trainee: Trainee) -> States:
    counts, each = model.counts, trainee.weight_bytes
    every = counts.total + adapter_parameters(model, trainee)
    trained = trained_parameters(model, trainee)
    embeddings = _COMPUTED * (counts.embedding + counts.head + 0.05 * counts.vision) / GIB
    layer = _COMPUTED * max(counts.layers) / GIB
    # FSDP2 wraps untied embeddings by themselves: utils/fsdp_utils.py, apply_fsdp2
    is_own_unit = trainee.engine == "fsdp2" and not model.is_tied
    root = 0.0 if is_own_unit else embeddings
    copies = 3 if model.is_tied else 2
    alone = _COMPUTED * counts.embedding / GIB
    if trainee.steps_on_cpu:
        states = States(0.0, 0.0, 0.0, 0.0)
    else:
        share = trainee.shard * GIB
        states = States(
            weights=every * each / share,
            gradients=trained * each / share,
            optimizer=trained * trainee.moment_bytes / share,
            step_copy=trained * each / share if trainee.uses_foreach else 0.0,
        )
    return States(
        weights=states.weights,
        gradients=states.gradients,
        optimizer=states.optimizer,
        step_copy=states.step_copy,
        root=root,
        layer=layer,
        units=2 * layer + (alone if is_own_unit else 0.0),
        head_gradient=0.0 if trainee.lora_rank else alone,
        root_gradients=0.0 if trainee.lora_rank else copies * (root or alone),
        unsharded_gradients=4 * every / GIB if trainee.has_whole_gradients and not trainee.lora_rank else 0.0,
        largest=each * counts.largest / GIB,
    )


def _megatron(model: ModelConfig, trainee: Trainee) -> States:
    counts, pipeline = model.counts, trainee.pipeline
    adapters = adapter_parameters(model, trainee)
    # the fullest stage has the embedding or the head, and as many layers as any
    part = math.ceil(model.layers / pipeline) / model.layers
    ends = counts.embedding + counts.head if pipeline == 1 else max(counts.embedding, counts.head)
    body = sum(counts.layers) - counts.experts + counts.outside + counts.vision + adapters
    dense = (ends + body * part) / trainee.tensor
    experts = counts.experts * part / (trainee.expert * trainee.expert_tensor)
    share = trained_parameters(model, trainee) / (counts.total + adapters)
    # the distributed optimizer divides its states over the data-parallel ranks
    own_dense = dense / max(1, trainee.world // (trainee.tensor * pipeline))
    own_experts = experts / max(1, trainee.world // (pipeline * trainee.expert * trainee.expert_tensor))
    optimizer = 0.0 if trainee.has_cpu_adam else _MEGATRON_OPTIMIZER * (own_dense + own_experts) / GIB
    return States(
        weights=trainee.weight_bytes * (dense + experts) / GIB,
        gradients=_MEGATRON_GRADIENT * (dense + experts) * share / GIB,
        optimizer=optimizer * share,
        step_copy=0.0,
        largest=_COMPUTED * counts.largest / GIB,
    )
