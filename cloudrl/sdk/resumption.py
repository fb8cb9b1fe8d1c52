"""`cloudrl jobs resume`: a durable job goes on, also with another number of GPUs than before."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from cloudrl.errors import InputError
from cloudrl.jobs import JobHandle
from cloudrl.jobs.handle import job_handle
from cloudrl.jobs.reshaped import reshape
from cloudrl.jobs.supervised import find_left, leave_again
from cloudrl.protocol.durable_jobs import DurableJob
from cloudrl.saves.lineage import without_abandoned
from cloudrl.saves.survey import cluster_inventory
from cloudrl.sdk.callbacks import OnProgress, notify, silent, transfer
from cloudrl.transport import Connection, inspect_cluster
from cloudrl.units import size_text
from cloudrl.verl import keys


def resume_job(
    connection: Connection,
    job_id: str,
    *,
    nodes: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    mirror: str | None = None,
    on_progress: OnProgress = silent,
) -> JobHandle:
    """Start a job again that was left with the agents of this cluster, or of an earlier one on the same volumes.

    It goes on from the newest step of its run that is whole. If another number of ranks has saved that, the head cuts
    its shards anew first; the old ones stay.

    Args:
        connection: the cluster.
        job_id: of the job.
        nodes: how many of the cluster's nodes train; see `reshape` for the default.
        overrides: in verl's own keys, in place of the job's.
        mirror: the place with copies of its steps that remembers it where the volumes do not; it keeps further copies.
        on_progress: receives notes and bytes.

    Raises:
        InputError: no volume and no mirror remembers it, it has not ended, or it cannot go on with these GPUs.
        CheckpointError: its step cannot be cut for them, or there is no room.
        ConnectionFailed: no answer.
    """
    before = find_left(connection, job_id, mirror=mirror or "")
    cluster = inspect_cluster(connection)
    job = reshape(before, cluster, nodes=nodes, overrides=overrides)
    if job.world_size != before.world_size:
        notify(on_progress, f"the job had {before.world_size} GPUs, and goes on with {job.world_size}")
    if job.saves and not job.chooses_step:
        _fit_step(connection, before, job, on_progress)
    elif job.world_size != before.world_size and job.chooses_step:
        raise InputError(
            f"job {before.job_id} has {before.world_size} ranks, and {job.world_size} would go on from the step that "
            f"its command names ({keys.RESUME_MODE})",
            hint="Cut the step yourself: cloudrl checkpoints reshard --help",
        )
    left = leave_again(connection, job)
    return job_handle(connection, left.job_id, left.request.get("metadata") or {})


def _fit_step(connection: Connection, before: DurableJob, job: DurableJob, on_progress: OnProgress) -> None:
    """Have the newest whole step for as many ranks as the job has."""
    from cloudrl.checkpoints.remote_reshard import cut_on_head, refuse_full_disks, refuse_uncut, step_to_cut
    from cloudrl.checkpoints.sources import ClusterSource

    agent, cluster = connection.agent(), inspect_cluster(connection)
    assert agent is not None  # noqa: S101  `find_left`
    reports = agent.status().nodes
    inventory = cluster_inventory(reports, agent.inventory)
    inventory.refuse_silent("it may have the newest step of the run", "Try again when it answers")
    roles = step_to_cut(without_abandoned(inventory, before), job.run, job.world_size)
    is_here = any(checkpoint.run == job.run for checkpoint in inventory.checkpoints)
    if job.mirror and job.world_size != before.world_size and not is_here:
        raise InputError(
            f"the steps of job {before.job_id} in {job.mirror} are those of {before.world_size} GPUs, and the cluster "
            f"has {job.world_size}: a step can be cut only on the nodes",
            hint=f"Start a cluster with {before.world_size} GPUs",
        )
    if not roles or (roles[0].world_size is None and job.world_size == before.world_size):
        return
    was = roles[0].world_size or before.world_size
    refuse_uncut(roles, was, job.world_size, cluster)
    refuse_full_disks(roles, job.world_size, {node.rank: node for node in reports if node.gpus > 0}, cluster)
    step = roles[0].step
    notify(on_progress, f"step {step} was saved with {was} GPUs: the head cuts its shards for {job.world_size}")
    done = cut_on_head(
        ClusterSource(connection),
        roles,
        job.world_size,
        cluster.checkpoint_dir,
        on_progress=transfer(f"resharding step {step}", on_progress),
        on_note=partial(notify, on_progress),
    )
    wrote = f"{done.files} files, {size_text(done.size_bytes)}"
    notify(on_progress, f"step {step} can be loaded with {job.world_size} GPUs now ({wrote}); the old shards stay")
    notify(on_progress, *(f"note: {warning}" for warning in done.warnings))
