"""Merges the shards of all ranks into a folder that appears whole or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cloudrl.checkpoints.staging import refuse_existing, staged
from cloudrl.shards.merge import DEFAULT, Merged, Tuning, plan_merge, write_model
from cloudrl.shards.progress import OnProgress, silent

if TYPE_CHECKING:
    from pathlib import Path

    from cloudrl.shards.inputs import MergeInputs


def merge(
    inputs: MergeInputs,
    target: Path,
    *,
    dtype: str = "bf16",
    tuning: Tuning = DEFAULT,
    on_progress: OnProgress = silent,
) -> Merged:
    """Merge one role of one step; the shards are only read, and a merge that was killed can be repeated.

    Everything that can be known without reading tensors is checked first.

    Args:
        inputs: The files.
        target: A folder that does not exist.
        dtype: See `plan_merge`.
        tuning: Checks, threads and sizes that are seldom anything but the default.
        on_progress: Called with bytes of the shards.

    Raises:
        InputError: `dtype` is unknown, or the target exists.
        CheckpointError: See `plan_merge`; or the target cannot be written.
    """
    refuse_existing(target)
    plan = plan_merge(inputs, dtype=dtype, max_file_bytes=tuning.max_file_bytes)
    with staged(target, plan.size_bytes, sync=tuning.sync) as folder:
        merged = write_model(plan, folder, tuning, on_progress)
    return replace(merged, path=target)
