"""Merges the shards of all ranks into a folder that appears whole or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cloudrl.checkpoints.staging import refuse_existing, staged
from cloudrl.shards.merge import Merged, plan_merge, write_model
from cloudrl.shards.plan import MAX_FILE_BYTES
from cloudrl.shards.progress import OnProgress, silent

if TYPE_CHECKING:
    from pathlib import Path

    from cloudrl.shards.inputs import MergeInputs


def merge(
    inputs: MergeInputs,
    target: Path,
    *,
    dtype: str = "bf16",
    sync: bool = False,
    threads: int | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
    on_progress: OnProgress = silent,
) -> Merged:
    """Merge one role of one step; the shards are only read, and a merge that was killed can be repeated.

    Everything that can be known without reading tensors is checked first.

    Args:
        inputs: The files.
        target: A folder that does not exist.
        dtype: See `plan_merge`.
        sync: Wait until the disk has the model. Without it a power failure within the next half minute may cost it;
            a killed process never does.
        threads: How many copy; by default as many as there are processors, at least 2 and at most 4.
        max_file_bytes: The most that a weight file may have.
        on_progress: Called with bytes of the shards.

    Raises:
        InputError: `dtype` is unknown, or the target exists.
        CheckpointError: See `plan_merge`; or the target cannot be written.
    """
    refuse_existing(target)
    plan = plan_merge(inputs, dtype=dtype, max_file_bytes=max_file_bytes)
    with staged(target, plan.size_bytes, sync=sync) as folder:
        merged = write_model(plan, folder, threads, on_progress)
    return replace(merged, path=target)
