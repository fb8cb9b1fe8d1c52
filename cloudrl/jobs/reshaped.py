"""A durable job that goes on with another number of GPUs: its command, and what the agents have to know of it. Pure."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloudrl.durable.request import with_overrides
from cloudrl.errors import InputError
from cloudrl.jobs.compatibility import check_compatibility
from cloudrl.jobs.config_check import check_config
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.local_files import LocalFiles
from cloudrl.options.job import SubmitOptions
from cloudrl.protocol.durable_jobs import DurableJob
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.folders import ON_HEAD
from cloudrl.spec import HydraText, Job
from cloudrl.spec.hydra import integer, split_key
from cloudrl.verl import keys
from cloudrl.verl.async_modes import ASYNC
from cloudrl.verl.command import overrides_of


def reshape(
    job: DurableJob, cluster: ClusterFacts, *, nodes: int | None = None, overrides: Mapping[str, Any] | None = None
) -> DurableJob:
    """The job for a cluster that is up, on so many of its nodes.

    Without a number it takes all nodes and GPUs, unless its user has chosen otherwise; a job that has left nodes to
    others keeps its own numbers.

    Args:
        job: as it is recorded.
        cluster: where it is to go on.
        nodes: how many of the cluster's nodes train.
        overrides: in verl's own keys; they win over those of the job.

    Raises:
        InputError: the cluster has not so many, or verl would refuse the job there; with both numbers.
    """
    words = shlex.split(str(job.request["entrypoint"]))
    changed = {split_key(key)[1]: f"{value}" for key, value in (overrides or {}).items()}
    values = {**overrides_of(shlex.join(words)), **changed}
    old_nodes = integer(values.get(keys.NODES)) or job.training_nodes or cluster.gpu_nodes
    old_gpus = integer(values.get(keys.GPUS)) or max(1, job.world_size // old_nodes)
    chosen = {**overrides_of(str((job.request.get("metadata") or {}).get("cloudrl_overrides", ""))), **changed}
    keeps = bool(job.training_nodes)
    new_nodes = nodes or (old_nodes if keeps or keys.NODES in chosen else cluster.gpu_nodes)
    new_gpus = old_gpus if keeps or keys.GPUS in chosen else cluster.gpus_per_node
    _refuse_missing(job, cluster, new_nodes, new_gpus)
    size = new_nodes * new_gpus
    if size != job.world_size:
        changed |= {keys.NODES: str(new_nodes), keys.GPUS: str(new_gpus)}
    if size != job.world_size and (mode := values.get(keys.TRAINER_MODE)) in ASYNC:
        raise InputError(
            f"job {job.job_id} has {job.world_size} ranks, and {size} would go on: with {keys.TRAINER_MODE}={mode} it "
            "can only go on with as many, as its queue of samples is part of each step",
            hint=f"Start a cluster with {job.world_size} GPUs for training",
        )
    words = with_overrides(words, changed)
    takes_all = new_nodes == cluster.gpu_nodes
    is_placed = not takes_all and ON_HEAD in words and cluster.places_training
    if not (takes_all or is_placed or cluster.has_one_disk):
        raise InputError(
            f"job {job.job_id} would train on {new_nodes} of {cluster.gpu_nodes} nodes, whose disks are their own, and "
            "its command does not say on which",
            hint=f"Train on all: cloudrl jobs resume {job.job_id} --nodes {cluster.gpu_nodes}",
        )
    request = {**job.request, "entrypoint": shlex.join(words)}
    if changed:
        _check(job, request["entrypoint"], cluster)
    steps = integer(changed.get(keys.STEPS)) if keys.STEPS in changed else job.total_steps
    return replace(
        job, request=request, world_size=size, total_steps=steps, training_nodes=0 if takes_all else new_nodes,
        is_placed=is_placed,
    )  # fmt: skip


def _refuse_missing(job: DurableJob, cluster: ClusterFacts, nodes: int, gpus: int) -> None:
    there = f"cluster {cluster.name!r} has {cluster.gpu_nodes} with {cluster.gpus_per_node}"
    if 1 <= nodes <= cluster.gpu_nodes and 1 <= gpus <= cluster.gpus_per_node:
        return
    fitting = f"cloudrl jobs resume {job.job_id} --nodes {min(max(1, nodes), cluster.gpu_nodes)}"
    if gpus > cluster.gpus_per_node:
        fitting += f" {keys.GPUS}={cluster.gpus_per_node}"
    raise InputError(f"job {job.job_id} takes {nodes} nodes with {gpus} GPUs each, and {there}", hint=fitting)


def _check(job: DurableJob, command: str, cluster: ClusterFacts) -> None:
    """Refuse what verl would refuse with the new numbers, such as a batch that they do not divide.

    Raises:
        InputError: with all reasons.
    """
    words = shlex.split(command)
    at = next((index for index, word in enumerate(words) if "=" in word and word[0] != "-"), len(words))
    if any("=" not in word for word in words[at:]):
        return  # no command of ours; Ray's log says what is wrong with it
    overrides = {key: HydraText(value) for key, _, value in (word.partition("=") for word in words[at:])}
    name = str((job.request.get("metadata") or {}).get("cloudrl_recipe") or "job")
    of_verl = Job(
        name=name, entrypoint=words[:at], overrides=overrides, verl=cluster.verl_version,
        device="cpu" if cluster.device == "cpu" else "gpu",
    )  # fmt: skip
    draft = JobDraft(job=of_verl, options=SubmitOptions(), cluster=cluster, overrides={})
    snapshot = Snapshot(cluster, LocalFiles(Path("/")))
    for each in (check_compatibility, check_config):
        draft = each(draft, snapshot)
    if draft.findings:
        why = "; ".join(finding.sentence for finding in draft.findings)
        fix = shlex.join(word for finding in draft.findings for word in finding.fix)
        hint = f"cloudrl jobs resume {job.job_id} {fix}" if fix else draft.findings[0].hint
        raise InputError(f"job {job.job_id} cannot go on with the GPUs of cluster {cluster.name!r}: {why}", hint=hint)
