"""The last step of a run: the model that a job has trained, merged on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudrl.cli import _output
from cloudrl.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from cloudrl.checkpoints.handle import Checkpoints
    from cloudrl.checkpoints.merge import Merged
    from cloudrl.jobs import JobHandle


def bring_home(job: JobHandle, target: Path, *, dtype: str = "bf16") -> Merged:
    """Merge the newest complete checkpoint of a job into a folder that does not exist.

    Raises:
        CheckpointError: It has left none where its cluster keeps checkpoints, or none that can be merged.
        ConnectionFailed: The cluster does not answer.
    """
    from cloudrl.checkpoints.handle import Checkpoints
    from cloudrl.checkpoints.origin import ClusterOrigin
    from cloudrl.cli._bytes import bytes_shown

    found = Checkpoints(ClusterOrigin(job.connection, on_break=_output.note))
    latest = found.latest(run=_run_of(job, found))
    with bytes_shown(f"merging step {latest.step}") as on_progress:
        merged = latest.merge(target, dtype=dtype, on_progress=on_progress)
    for warning in merged.warnings:
        _output.note(f"warning: {warning}")
    return merged


def _run_of(job: JobHandle, found: Checkpoints) -> str:
    """The run that lies in the job's folder."""
    wanted = (job.checkpoint_dir or "").rstrip("/")
    for each in found.inventory.checkpoints:
        folders = {f"{place.folder.rstrip('/')}/{each.run}".removesuffix("/.") for place in each.places}
        if wanted in folders:
            return each.run
    raise CheckpointError(
        f"job {job.submission_id} has left no checkpoint in {wanted or 'a folder that is known'}",
        hint="What there is: cloudrl checkpoints list",
    )
