"""Checkpoints of a cluster or a folder: find them, publish one, remove old ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudrl.errors import InputError
from cloudrl.providers import registry
from cloudrl.sdk.amounts import gigabytes
from cloudrl.sdk.callbacks import Confirm, Notice, OnProgress, Question, silent, transfer, unattended
from cloudrl.sdk.find import only_of, running_clusters
from cloudrl.sdk.running import attach

if TYPE_CHECKING:
    from cloudrl.checkpoints.handle import CheckpointHandle, Checkpoints
    from cloudrl.checkpoints.push import PushPlan
    from cloudrl.saves.prune import PrunePlan, Removal


def find_checkpoints(
    cluster: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    *,
    give_up_s: float = 600.0,
    on_progress: OnProgress = silent,
) -> Checkpoints:
    """All checkpoints of a cluster, or of a folder of this machine; of the only cluster if neither is named.

    Those of a cluster of this machine that is down are still there.

    Args:
        cluster: its name.
        folder: one with runs, a run, or one step.
        give_up_s: how long to wait for a node that stays silent.
        on_progress: is told breaks of the connection.

    Raises:
        InputError: both are named, there is none, or there are several clusters.
        ConnectionFailed: the cluster does not answer.
    """
    from cloudrl.checkpoints.handle import Checkpoints
    from cloudrl.checkpoints.sources import ClusterSource, LocalSource
    from cloudrl.protocol.backoff import Backoff

    if cluster is not None and folder is not None:
        raise InputError(f"--cluster {cluster} and --dir {folder} are two places", hint="Give one of the two")
    if folder is not None:
        return Checkpoints(LocalSource(Path(folder).expanduser()))
    none = "Name a folder, for example: cloudrl checkpoints list --dir ./checkpoints"
    name = cluster if cluster is not None else only_of(running_clusters(), none=none)
    if (kept := _kept_folder(name)) is not None:
        return Checkpoints(LocalSource(kept))
    backoff = Backoff(give_up_s=give_up_s)
    on_break = lambda sentence: on_progress(Notice(sentence))  # noqa: E731
    return Checkpoints(ClusterSource(attach(name).connection, backoff, on_break))


def plan_push(
    checkpoint: CheckpointHandle, repo: str, *, private: bool = True, dtype: str = "bf16"
) -> PushPlan:
    """What publishing a checkpoint on the Hugging Face Hub would do; `.render()` is the model card.

    Raises:
        InputError: the name of the repository is none.
    """
    from cloudrl.checkpoints import push
    from cloudrl.checkpoints.card import provenance
    from cloudrl.checkpoints.sources import ClusterSource

    source = checkpoint.source
    known = None
    if isinstance(source, ClusterSource):
        known = provenance(source.connection, checkpoint.run, checkpoint.step)
    staging = Path(os.environ.get("CLOUDRL_HOME") or "~/.cloudrl").expanduser().absolute() / "push"
    return push.plan_push(checkpoint, repo, staging, private=private, dtype=dtype, known=known)


def prune(
    found: Checkpoints,
    keep: int,
    *,
    run: str | None = None,
    confirm: Confirm = unattended,
    on_progress: OnProgress = silent,
) -> PrunePlan:
    """Remove old steps on all nodes; never the newest complete one, nor one that a job would go on from.

    Args:
        found: all checkpoints of a cluster or a folder.
        keep: how many complete steps of each run stay.
        run: of this run alone.
        confirm: is asked before anything goes.
        on_progress: is told each step that goes, and why others stay.

    Raises:
        InputError: `keep` is less than one, the answer was no, or nobody was there to answer.
        CheckpointError: a node stays silent, or a step cannot be removed.
    """
    from cloudrl.saves.prune import plan_prune

    found.inventory.refuse_silent("what it has would be left half-removed", "Try again when it answers")
    plan = plan_prune(found.inventory, keep, run=run, commands=_commands(found))
    for line in [*(f"note: {note}" for note in plan.notes), *map(_described, plan.removals)]:
        on_progress(Notice(line))
    question = f"Remove {len(plan.removals)} steps, {gigabytes(plan.size_bytes)}?"
    if plan.removals and not confirm(Question(question, default=None)):
        raise InputError("nothing was removed")
    for removal in plan.removals:
        for location in removal.locations:
            found.source.remove(location, removal.path)
    return plan


def _described(removal: Removal) -> str:
    where = "".join(f" on {each.short}" for each in removal.locations if each.ranks)
    incomplete = "" if removal.complete else ", incomplete"
    return f"{removal.run}: step {removal.step}{where}, {gigabytes(removal.size_bytes)}{incomplete}"


def _commands(found: Checkpoints) -> list[str]:
    """Of the jobs that have not ended."""
    from cloudrl.checkpoints.sources import ClusterSource

    if not isinstance(found.source, ClusterSource):
        return []
    return [job.entrypoint for job in found.source.connection.ray().list_jobs() if not job.status.is_terminal]


def _kept_folder(name: str) -> Path | None:
    """What a cluster that is over has left on this machine."""
    looks = registry.find(name).clusters
    folder = looks[0].checkpoint_dir if looks and looks[0].is_over and looks[0].nodes_are_here else None
    return Path(folder) if folder is not None and Path(folder).is_dir() else None


def merge(
    checkpoint: CheckpointHandle,
    to: str | os.PathLike[str],
    *,
    dtype: str = "bf16",
    on_head: bool = False,
    sync: bool = False,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """Make a Hugging Face model of a checkpoint, here or on the head's disk; returns what came of it.

    Raises:
        InputError: the folder exists, or `dtype` is unknown.
        CheckpointError: it cannot be merged.
    """
    on_bytes = transfer(f"merging step {checkpoint.step}", on_progress)
    if on_head:
        from cloudrl.checkpoints.remote_merge import merge_on_head

        done = merge_on_head(checkpoint, str(to), dtype=dtype, sync=sync, on_progress=on_bytes)
    else:
        done = checkpoint.merge(to, dtype=dtype, sync=sync, on_progress=on_bytes).to_json()
    for warning in done["warnings"]:
        on_progress(Notice(f"warning: {warning}"))
    return done
