"""verl's asynchronous modes as overrides (verl 0.9.1, trainer/ppo/v1: trainer_colocate_async, trainer_separate_async).

Both train on answers that older weights gave, so they weigh each token by how much its probability has changed:
truncated importance sampling, for which the rollout returns the probabilities of its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudrl.verl.keys import ACTOR, GPUS, NODES, QUEUE_UNITS, ROLLOUT, TRAINER_MODE

COLOCATED, SEPARATE = "colocate_async", "separate_async"
ASYNC = (COLOCATED, SEPARATE)
ENGINE = f"{ROLLOUT}.checkpoint_engine"
BACKEND, MODULE = f"{ENGINE}.backend", f"{ENGINE}.custom_backend_module"
_CORRECTED = {f"{ROLLOUT}.calculate_log_probs": True, "algorithm.rollout_correction.rollout_is": "token"}
SYNC_STEP = "trainer.v1.separate_async.parameter_sync_step"
MINI_BATCH = f"{ACTOR}.ppo_mini_batch_size"
PINNED = "transfer_queue.backend.SimpleStorage.required_node_resource"
NOT_KEPT_APART = "verl places training on whichever nodes have room first, so nodes of two kinds cannot be kept apart"
"""Each worker asks Ray for a GPU of any kind (verl 0.9.1, single_controller/ray/base.py: RayResourcePool)."""
ALL_ALIKE_HINT = "All nodes alike, and some of them for the rollout: cloudrl submit grpo --rollout-nodes 2"
CPUS_PER_ROLLOUT_GPU = 2
"""On nodes that only generate (workers/rollout/replica.py: init_standalone, max_colocate_count)."""
COUNT_OFTEN = {"VERL_REPLAY_BUFFER_DEBUG_INTERVAL_SECONDS": "10"}
"""Variable of the job with which verl counts the prompts in flight while training has waited for so many seconds, and
not for 60 (trainer/ppo/v1/replay_buffer.py: _wait_for_next_poll)."""
_UNITS = 2
"""A resume needs as many units as the save had, on whatever cluster (TransferQueue 0.1.11, simple_storage_manager.py:
"Storage unit count mismatch"), and each takes a CPU, of the head where the queue is kept there."""


def colocated() -> dict[str, Any]:
    """The rollout shares the GPUs of training, and has the next batch under way when a step ends."""
    return {TRAINER_MODE: COLOCATED, **_CORRECTED}


def separated(*, nodes: int, rollout_nodes: int, gpus_per_node: int, updates: int, on_cpu: bool) -> dict[str, Any]:
    """The rollout has nodes of its own.

    Args:
        nodes: of the cluster.
        rollout_nodes: of them, for the rollout alone.
        gpus_per_node: of each.
        updates: of the actor in a step, after each of which the trainer goes on without new weights in the rollout.
        on_cpu: whether the nodes compute on CPUs, for which verl has no checkpoint engine.
    """
    return {
        TRAINER_MODE: SEPARATE,
        NODES: nodes - rollout_nodes,
        GPUS: gpus_per_node,
        f"{ROLLOUT}.nnodes": rollout_nodes,
        f"{ROLLOUT}.n_gpus_per_node": gpus_per_node,
        **checkpoint_engine(on_cpu=on_cpu),
        SYNC_STEP: updates,
        **_CORRECTED,
    }


def as_typed(overrides: Mapping[str, Any]) -> str:
    """Overrides as one types them on a command line; of keys and values that a shell leaves alone."""
    return " ".join(f"{key}={value}" for key, value in overrides.items())


def checkpoint_engine(*, on_cpu: bool) -> dict[str, Any]:
    """The engine that takes weights to nodes of the rollout: ours on CPUs, for which verl has none."""
    if on_cpu:
        return {BACKEND: "gloo", MODULE: "cloudrl.verl_cpu.checkpoint_engine"}
    return {BACKEND: "nccl"}


def fitting_updates(batch: int, mini_batch: int) -> dict[str, Any]:
    """Updates of the actor in a step, and the nearest mini batch that divides the batch, which stays as it is."""
    if batch < 1:
        return {}
    divisors = (size for size in range(1, batch + 1) if batch % size == 0)
    nearest = min(divisors, key=lambda size: abs(size - mini_batch))
    return {SYNC_STEP: batch // nearest, **({MINI_BATCH: nearest} if nearest != mini_batch else {})}


def pinned_queue(room: int | None) -> dict[str, Any]:
    """TransferQueue's storage on the head, so that a save needs no folder that all nodes see.

    Each storage unit writes its part on its own node, into a folder that the controller makes on another one
    (TransferQueue 0.1.11, interface.py: save_checkpoint). The resource only chooses the nodes (utils/common.py).

    Args:
        room: CPUs of the head that are left for it; None if unknown.
    """
    return {f"+{PINNED}": "node:__internal_head__", QUEUE_UNITS: queue_units(room)}


def queue_units(room: int | None) -> int:
    """Storage units of the queue, the same on any cluster that has CPUs for them.

    Args:
        room: CPUs that are left for them; None if unknown.
    """
    return _UNITS if room is None else max(1, min(_UNITS, room))
