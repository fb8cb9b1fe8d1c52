"""Merges the shards of all ranks into a folder that appears whole or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cloudrl.checkpoints.staging import refuse_existing, staged
from cloudrl.shards.merge import DEFAULT, Merged, Tuning, plan_merge, write_model
from cloudrl.shards.progress import OnProgress, silent

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cloudrl.shards.source import ShardSource, Sidecars


def merge(
    shards: Mapping[int, ShardSource],
    config_files: Mapping[str, bytes],
    target: Path,
    *,
    dtype: str = "bf16",
    world_size: int | None = None,
    sidecars: Mapping[int, Sidecars] | None = None,
    tuning: Tuning = DEFAULT,
    on_progress: OnProgress = silent,
) -> Merged:
    """Merge one role (actor, critic) of one step.

    Everything that can be known without reading tensors is checked first. The target appears whole or not at all; the
    shards are only read. A merge that was killed can be repeated.

    Args:
        shards: The model file of each rank; with replicas (HSDP), at least one rank of each part.
        config_files: What lies in `huggingface/` beside them, by name.
        target: A folder that does not exist.
        dtype: Of all floats: `bf16` (as verl's own merger), `fp16`, `fp32`, or `keep`. Other types are kept.
        world_size: Ranks of the run, from `fsdp_config.json`; without it, what the files say.
        sidecars: What else lies there of each rank, to make sure that all are from one step.
        tuning: Checks, threads and sizes that are seldom anything but the default.
        on_progress: Called with bytes of the shards.

    Raises:
        InputError: `dtype` is unknown, or the target exists.
        CheckpointError: The checkpoint is incomplete, damaged, mixed, or not of a kind that can be merged; or the
            target cannot be written.
    """
    refuse_existing(target)
    plan = plan_merge(
        shards,
        config_files,
        dtype=dtype,
        world_size=world_size,
        sidecars=sidecars,
        max_file_bytes=tuning.max_file_bytes,
    )
    with staged(target, plan.size_bytes, sync=tuning.sync) as folder:
        merged = write_model(plan, folder, tuning, on_progress)
    return replace(merged, path=target)
