"""The last step of a run: the model that a job has trained, merged on this machine."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from cloudrl.errors import CheckpointError
from cloudrl.sdk.callbacks import Notice, OnProgress, silent, transfer

if TYPE_CHECKING:
    import os

    from cloudrl.checkpoints.handle import CheckpointHandle, Checkpoints
    from cloudrl.checkpoints.merge import Merged
    from cloudrl.jobs import JobHandle


def merge_result(
    job: JobHandle,
    target: str | os.PathLike[str],
    *,
    dtype: str = "bf16",
    on_progress: OnProgress = silent,
) -> tuple[CheckpointHandle, Merged]:
    """Merge the newest complete checkpoint of a job into a folder that does not exist.

    Raises:
        CheckpointError: It has left none where its cluster keeps checkpoints, none that can be merged, or its last
            one is incomplete.
        ConnectionFailed: The cluster does not answer, or one of its nodes.
    """
    from cloudrl.checkpoints.handle import Checkpoints
    from cloudrl.checkpoints.sources import ClusterSource

    found = Checkpoints(ClusterSource(job.connection, on_break=lambda text: on_progress(Notice(text))))
    for note in found.notes:
        on_progress(Notice(f"note: {note}"))
    name, to = shlex.quote(job.connection.name), shlex.quote(str(target))
    again = f"When it answers: cloudrl checkpoints merge --cluster {name} --to {to}"
    found.inventory.refuse_silent("it may have the last step", again)
    latest = found.latest(run=_run_of(job, found))
    _refuse_older(latest, found, to=f"--cluster {name} --name {shlex.quote(latest.run)} --to {to}")
    merged = latest.merge(
        target, dtype=dtype, on_progress=transfer(f"merging step {latest.step}", on_progress)
    )
    for warning in merged.warnings:
        on_progress(Notice(f"warning: {warning}"))
    return latest, merged


def _refuse_older(latest: CheckpointHandle, found: Checkpoints, *, to: str) -> None:
    """What has been trained since would stay behind, and nobody would be told.

    Args:
        latest: the newest complete one.
        found: all of them.
        to: how a command that merges names the cluster, the run and the target.
    """
    whole = latest.info
    for each in reversed(found.inventory.checkpoints):
        mine = (each.run, each.role) == (whole.run, whole.role)
        later = (each.modified_at, each.step) > (whole.modified_at, whole.step)
        if mine and later and not each.complete:
            raise CheckpointError(
                f"the last checkpoint of the job, step {each.step}, is incomplete: it lacks {', '.join(each.missing)}; "
                f"the one before is step {whole.step}",
                hint=f"To take that one: cloudrl checkpoints merge {whole.step} {to}",
            )


def _run_of(job: JobHandle, found: Checkpoints) -> str:
    """The run that lies in the job's folder."""
    folder = (job.checkpoint_dir or "").rstrip("/")
    for each in found.inventory.checkpoints:
        folders = {f"{place.folder.rstrip('/')}/{each.run}".removesuffix("/.") for place in each.locations}
        if folder in folders:
            return each.run
    raise CheckpointError(
        f"job {job.submission_id} has left no checkpoint in {folder or 'a folder that is known'}",
        hint=f"What there is: cloudrl checkpoints list --cluster {shlex.quote(job.connection.name)}",
    )
