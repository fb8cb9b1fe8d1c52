"""Checkpoints of a cluster, a folder or a job: find them, merge or publish one, remove old ones."""

import os
import shlex
from dataclasses import asdict
from functools import partial
from pathlib import Path

from cloudrl.checkpoints.chosen import mark_chosen
from cloudrl.checkpoints.handle import CheckpointHandle, Checkpoints
from cloudrl.checkpoints.merge import Merged
from cloudrl.checkpoints.pull import Pulled
from cloudrl.checkpoints.push import PushPlan
from cloudrl.checkpoints.reshard import Resharded
from cloudrl.checkpoints.sources import CheckpointSource
from cloudrl.errors import CheckpointError, ConnectionFailed, InputError
from cloudrl.jobs import JobHandle
from cloudrl.options.merge import DEFAULTS, MergeOptions
from cloudrl.protocol.backoff import Backoff
from cloudrl.protocol.ranks import ranks_text
from cloudrl.protocol.side_by_side import side_by_side
from cloudrl.providers import registry
from cloudrl.providers.state_folder import home
from cloudrl.saves.names import of_run
from cloudrl.saves.places import Location, nodes_text
from cloudrl.saves.prune import PrunePlan, Removal, plan_prune
from cloudrl.sdk.callbacks import Confirm, OnProgress, Question, notify, silent, transfer, unattended
from cloudrl.sdk.choose import Purpose, choose_cluster
from cloudrl.sdk.costs import counted_dollars
from cloudrl.sdk.find import folder_here
from cloudrl.sdk.running import attach
from cloudrl.shards.progress import OnProgress as OnBytes
from cloudrl.units import size_text


def find_checkpoints(
    cluster: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    *,
    purpose: Purpose = Purpose.READ_KEPT,
    give_up_s: float = 600.0,
    on_progress: OnProgress = silent,
) -> Checkpoints:
    """All checkpoints of a cluster, or of a folder of this machine; see `choose_cluster` if neither is named.

    Those of a cluster of this machine that is down are still there.

    Args:
        cluster: its name.
        folder: one with runs, a run, or one step.
        purpose: what is done with them.
        give_up_s: how long to wait for a node that stays silent.
        on_progress: receives breaks of the connection, and which of several clusters it is.

    Raises:
        InputError: both are named, or neither is and there is no cluster, or several.
        ConnectionFailed: the cluster does not answer.
    """
    from cloudrl.checkpoints.handle import Checkpoints
    from cloudrl.checkpoints.sources import ClusterSource, LocalSource

    if cluster is not None and folder is not None:
        raise InputError(f"--cluster {cluster} and --dir {folder} exclude each other", hint="Pass only one of them")
    if folder is not None:
        return Checkpoints(LocalSource(Path(folder).expanduser()))
    name = cluster or choose_cluster(purpose, otherwise="Or use a folder: --dir DIR", on_progress=on_progress)
    if (left_here := _kept_folder(name)) is not None:
        return Checkpoints(LocalSource(left_here))
    backoff = Backoff(give_up_s=give_up_s)
    return Checkpoints(ClusterSource(attach(name).connection, backoff, partial(notify, on_progress)))


def plan_push(
    checkpoint: CheckpointHandle,
    repo: str,
    *,
    private: bool = True,
    options: MergeOptions = DEFAULTS,
) -> PushPlan:
    """What publishing a checkpoint on the Hugging Face Hub would do; `.render()` is the model card.

    Raises:
        InputError: the name of the repository is not valid.
    """
    from cloudrl.checkpoints import push
    from cloudrl.checkpoints.card import provenance
    from cloudrl.checkpoints.sources import ClusterSource

    source = checkpoint.source
    origin = None
    if isinstance(source, ClusterSource):
        origin = provenance(source.connection, checkpoint.run, checkpoint.step)
    return push.plan_push(checkpoint, repo, home() / "push", private=private, options=options, known=origin)


def publish(plan: PushPlan, *, on_head: bool = False, on_progress: OnProgress = silent) -> str:
    """Merge a checkpoint and upload it to the Hugging Face Hub; returns the repository's URL.

    Args:
        plan: what `plan_push` made.
        on_head: do both on the head of its cluster, as a job that outlives this program, with this machine's token.
        on_progress: receives bytes and sentences.

    Raises:
        InputError: the Hub refuses, or this machine's disk fails.
        CheckpointError: the checkpoint cannot be merged.
        ConnectionFailed: the Hub or a node does not answer.
    """
    from cloudrl.checkpoints.push import push
    from cloudrl.checkpoints.remote_merge import push_on_head

    on_bytes = _on_bytes("merging", plan.checkpoint, on_progress)
    if on_head:
        on_upload = _on_bytes("uploading", plan.checkpoint, on_progress)
        return push_on_head(plan, on_progress=on_bytes, on_upload=on_upload, on_note=partial(notify, on_progress))
    return push(plan, on_progress=on_bytes)


def prune(
    checkpoints: Checkpoints,
    keep: int,
    *,
    every: int | None = None,
    best: str | None = None,
    run: str | None = None,
    confirm: Confirm = unattended,
    on_progress: OnProgress = silent,
) -> PrunePlan:
    """Remove old steps on all nodes; never the newest complete one, nor one that a job would go on from.

    Args:
        checkpoints: all checkpoints of a cluster or a folder.
        keep: how many complete steps of each run stay.
        every: steps that are multiples of it stay, too, in place of those that durable jobs keep for good; 0 for none.
        best: likewise the step with the highest value of this metric, `min:METRIC` the lowest, as jobs recorded it.
        run: of this run alone.
        confirm: is asked before anything goes.
        on_progress: receives each step that goes, and why others stay.

    Raises:
        InputError: `keep` is less than one, no job has recorded values of `best`, the answer was no, or there was no
            terminal to ask on.
        ConnectionFailed: a node stays silent.
        CheckpointError: a step cannot be removed.
    """
    checkpoints.inventory.refuse_silent("what it has would be left half-removed", "Try again when it answers")
    inventory = checkpoints.inventory
    if every is not None or best is not None:
        jobs = checkpoints.source.durable_jobs() if best else ()
        inventory = mark_chosen(inventory, jobs, every=every or 0, best=best or "", run=run)
    plan = plan_prune(inventory, keep, run=run, commands=_commands(checkpoints))
    notify(on_progress, *(f"note: {note}" for note in plan.notes), *map(_describe, plan.removals))
    question = f"Remove {plan.steps_text}, {size_text(plan.size_bytes)}, from {checkpoints.source.place}?"
    if plan.removals and not confirm(Question(question, default=None)):
        raise InputError("nothing was removed")
    for removal in plan.removals:
        _remove(checkpoints.source, removal)
    checkpoints.source.remove_rest()
    return plan


def _remove(source: CheckpointSource, removal: Removal) -> None:
    """One step, on all its nodes at once; those that can do so remove it although another cannot."""

    def remove(location: Location) -> CheckpointError | ConnectionFailed | None:
        try:
            source.remove(location, removal.path)
        except (CheckpointError, ConnectionFailed) as failure:
            return failure
        return None

    places = sorted(removal.locations, key=lambda location: location.ranks)
    failures = [
        (place, failure) for place, failure in zip(places, side_by_side(remove, places), strict=True) if failure
    ]
    if failures:
        (_, first), *others = failures
        ranks = [place.ranks[0] for place, _ in others]
        more = f" ({ranks_text(ranks, 'node')} cannot remove it either)" if ranks else ""
        raise type(first)(f"{first.message}{more}", hint=first.hint)


def _describe(removal: Removal) -> str:
    nodes = nodes_text(removal.locations)
    where = f" on {nodes}" if nodes else ""
    incomplete = "" if removal.complete else ", incomplete"
    return f"{of_run(removal.run)}step {removal.step}{where}, {size_text(removal.size_bytes)}{incomplete}"


def _commands(checkpoints: Checkpoints) -> list[str]:
    """Of the jobs that have not ended."""
    from cloudrl.checkpoints.sources import ClusterSource

    if not isinstance(checkpoints.source, ClusterSource):
        return []
    return [job.entrypoint for job in checkpoints.source.connection.ray().list_jobs() if not job.status.is_terminal]


def _kept_folder(name: str) -> Path | None:
    """What a cluster that is over has left on this machine."""
    looks = registry.find(name).clusters
    folder = folder_here(looks[0]) if looks and looks[0].is_over else None
    return folder if folder is not None and folder.is_dir() else None


def merge(
    checkpoint: CheckpointHandle,
    to: str | os.PathLike[str],
    options: MergeOptions = DEFAULTS,
    *,
    on_head: bool = False,
    on_progress: OnProgress = silent,
) -> Merged:
    """Make a Hugging Face model of a checkpoint, here or on the head's disk.

    Raises:
        InputError: the folder exists, `dtype` or `lora` is unknown, or `base` is not a model or not needed.
        CheckpointError: it cannot be merged.
    """
    from cloudrl.checkpoints.remote_merge import merge_on_head

    on_bytes = _on_bytes("merging", checkpoint, on_progress)
    if on_head:
        merged = merge_on_head(checkpoint, str(to), options, on_progress=on_bytes)
    else:
        merged = checkpoint.merge(to, **asdict(options), on_progress=on_bytes)
    notify(on_progress, *(f"warning: {warning}" for warning in merged.warnings))
    return merged


def pull(checkpoint: CheckpointHandle, to: str | os.PathLike[str], *, on_progress: OnProgress = silent) -> Pulled:
    """Copy all ranks and roles of a step as they are: see `CheckpointHandle.pull`.

    Raises:
        InputError: the folder cannot be written.
        CheckpointError: it is incomplete, there is no room, or a file is damaged on the way.
    """
    return checkpoint.pull(to, on_progress=_on_bytes("copying", checkpoint, on_progress))


def _on_bytes(doing: str, checkpoint: CheckpointHandle, on_progress: OnProgress) -> OnBytes:
    """Reports bytes of one step, with what its cluster has cost so far."""
    from cloudrl.checkpoints.sources import ClusterSource

    source = checkpoint.source
    dollars = counted_dollars(source.connection) if isinstance(source, ClusterSource) else lambda: None
    return transfer(f"{doing} step {checkpoint.step}", on_progress, dollars)


def reshard(
    checkpoint: CheckpointHandle,
    to: str | os.PathLike[str],
    world_size: int,
    *,
    torch: str | None = None,
    on_progress: OnProgress = silent,
) -> Resharded:
    """Make a step that another number of ranks can resume from: see `CheckpointHandle.reshard`.

    Raises:
        InputError: the step exists there, so many ranks are not possible, or `torch` is needed or not known.
        CheckpointError: it cannot be cut anew.
    """
    on_bytes = _on_bytes("resharding", checkpoint, on_progress)
    resharded = checkpoint.reshard(to, world_size, torch=torch, on_progress=on_bytes)
    notify(on_progress, *(f"note: {note}" for note in resharded.notes))
    return resharded


def merge_result(
    job: JobHandle, target: str | os.PathLike[str], *, on_progress: OnProgress = silent
) -> tuple[CheckpointHandle, Merged]:
    """Merge the newest complete checkpoint of a job into a folder that does not exist.

    Raises:
        CheckpointError: It has left none where its cluster keeps checkpoints, none that can be merged, or its last
            one is incomplete.
        ConnectionFailed: The cluster does not answer, or one of its nodes.
    """
    latest = _latest_of(job, "merge", str(target), on_progress)
    return latest, merge(latest, target, on_progress=on_progress)


def publish_result(job: JobHandle, repo: str, *, on_progress: OnProgress = silent) -> tuple[CheckpointHandle, str]:
    """Publish the newest complete checkpoint of a job from the head of its cluster; the checkpoint and the URL.

    Raises:
        InputError: There is no token for the Hub, or the name is not valid.
        CheckpointError: As `merge_result`, or the Hub refuses.
        ConnectionFailed: The cluster does not answer, or one of its nodes.
    """
    latest = _latest_of(job, "push --on-head", repo, on_progress)
    return latest, publish(plan_push(latest, repo), on_head=True, on_progress=on_progress)


def _latest_of(job: JobHandle, verb: str, target: str, on_progress: OnProgress) -> CheckpointHandle:
    """The newest complete checkpoint of a job, unless a newer one is incomplete.

    Args:
        job: that has ended.
        verb: of `cloudrl checkpoints`, with its options, for hints.
        target: what follows its `--to`.
        on_progress: receives notes.
    """
    from cloudrl.checkpoints.handle import Checkpoints
    from cloudrl.checkpoints.sources import ClusterSource

    checkpoints = Checkpoints(ClusterSource(job.connection, on_break=partial(notify, on_progress)))
    notify(on_progress, *(f"note: {note}" for note in checkpoints.notes))
    name, to = shlex.quote(job.connection.name), shlex.quote(target)
    command = f"cloudrl checkpoints {verb}"
    again = f"When it answers: {command} --cluster {name} --to {to}"
    checkpoints.inventory.refuse_silent("it may have the last step", again)
    latest = checkpoints.latest(run=_run_of(job, checkpoints))
    at = f"--cluster {name} --name {shlex.quote(latest.run)} --to {to}"
    _refuse_older(latest, checkpoints, command=command, to=at)
    return latest


def _refuse_older(latest: CheckpointHandle, checkpoints: Checkpoints, *, command: str, to: str) -> None:
    """What has been trained since would stay behind, without a word to the user.

    Args:
        latest: the newest complete one.
        checkpoints: all of them.
        command: `cloudrl checkpoints merge`, for example.
        to: how it names the cluster, the run and the target.
    """
    newest = latest.info
    for checkpoint in reversed(checkpoints.inventory.checkpoints):
        mine = (checkpoint.run, checkpoint.role) == (newest.run, newest.role)
        later = (checkpoint.modified_at, checkpoint.step) > (newest.modified_at, newest.step)
        if mine and later and not checkpoint.complete:
            why = f"it {checkpoint.shortfall}" if checkpoint.missing else checkpoint.shortfall
            raise CheckpointError(
                f"the last checkpoint of the job, step {checkpoint.step}, is incomplete: {why}; "
                f"the one before is step {newest.step}",
                hint=f"To take that one: {command} {newest.step} {to}",
            )


def _run_of(job: JobHandle, checkpoints: Checkpoints) -> str:
    """The run that is in the job's folder."""
    folder = (job.checkpoint_dir or "").rstrip("/")
    for checkpoint in checkpoints.inventory.checkpoints:
        folders = {f"{place.folder.rstrip('/')}/{checkpoint.run}".removesuffix("/.") for place in checkpoint.locations}
        if folder in folders:
            return checkpoint.run
    raise CheckpointError(
        f"job {job.submission_id} left no checkpoint in {folder or 'a folder that is known'}",
        hint=f"See all: cloudrl checkpoints list --cluster {shlex.quote(job.connection.name)}",
    )
