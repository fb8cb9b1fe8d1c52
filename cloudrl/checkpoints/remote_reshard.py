"""Has the head cut a step for another number of ranks, so that a job can go on with these; as a Ray job."""

import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from cloudrl.checkpoints.head_jobs import head_agent, no_note, no_result, result_of, start_on_head
from cloudrl.checkpoints.remote_reshard_main import HeadReshard
from cloudrl.checkpoints.reshard_beside import Beside
from cloudrl.checkpoints.sources import ClusterSource
from cloudrl.errors import CheckpointError
from cloudrl.foreign import NOT_AS_EXPECTED, as_object
from cloudrl.jobs.handle import find_job
from cloudrl.protocol.backoff import Backoff
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.report import NodeReport
from cloudrl.saves.copies import refuse_without_room
from cloudrl.saves.inventory import Checkpoint, Inventory, resume_order
from cloudrl.saves.names import KINDS
from cloudrl.shards.progress import OnProgress, silent
from cloudrl.units import size_text

_GOAL = "cloudrl_reshard"
"""In the metadata of the job: the step, and for how many ranks it is cut."""
_SPARE_BYTES = 64 << 20


def step_to_cut(inventory: Inventory, run: str, world_size: int) -> list[Checkpoint]:
    """The roles of the newest whole step of a run if so many ranks cannot load it; empty if they can, or without one.

    Args:
        inventory: Of the cluster.
        run: Its name.
        world_size: Ranks that are going to resume.
    """
    steps = inventory.saved_steps(run)
    for step in resume_order(steps):
        names = {role.role for role in steps[step]}
        by_size: dict[int | None, list[Checkpoint]] = defaultdict(list)
        for role in steps[step]:
            if role.complete:
                by_size[role.world_size].append(role)
        whole = [roles for roles in by_size.values() if {role.role for role in roles} == names]
        if whole:
            fits = any(roles[0].world_size == world_size for roles in whole)
            return [] if fits else max(whole, key=lambda roles: roles[0].world_size or 0)
    return []


def refuse_uncut(roles: Sequence[Checkpoint], was: int, world_size: int, cluster: ClusterFacts) -> None:
    """Refuse a step that cannot be cut.

    Raises:
        CheckpointError: It is not of FSDP; with both numbers of ranks.
    """
    for role in roles:
        if not role.is_sharded:
            program = "Megatron" if role.is_megatron else "another program"
            raise CheckpointError(
                f"{role.name} was saved by {was} ranks, and {world_size} would go on: only the shards of FSDP can be "
                f"cut for another number of ranks, and {program} saved it",
                hint=f"Start a cluster with {was} GPUs, or merge the model and train on from that:\n"
                f"cloudrl checkpoints merge {role.step} --cluster {shlex.quote(cluster.name)} "
                f"--name {shlex.quote(role.run)} --to ./model",
            )


def refuse_full_disks(
    roles: Sequence[Checkpoint], world_size: int, nodes: Mapping[int, NodeReport], cluster: ClusterFacts
) -> None:
    """Reckon the room: the head takes all new shards, and each other node that trains a copy of its ranks' part.

    Args:
        roles: Of the step.
        world_size: Ranks that are going to resume.
        nodes: That train, by their ranks.
        cluster: Where it is.

    Raises:
        CheckpointError: A disk has no room; with both sizes.
    """
    size = sum(file.size_bytes for role in roles for kind in KINDS for file in role.shards(kind).values())
    make_room = f"Make room: cloudrl checkpoints prune --cluster {shlex.quote(cluster.name)} --keep-last 1"
    head = nodes.get(0)
    if head is not None and 0 < (free := _free_bytes(head)) < size + _SPARE_BYTES:
        raise CheckpointError(
            f"step {roles[0].step} cut for {world_size} ranks takes {size_text(size)} of the head's disk, and "
            f"{size_text(free)} are free",
            hint=make_room,
        )
    if cluster.shared_checkpoints:
        return
    for rank, node in nodes.items():
        if rank and (free := _free_bytes(node)):
            try:
                refuse_without_room(size // len(nodes), free)
            except OSError as error:
                raise CheckpointError(f"node {rank}: {error}", hint=make_room) from None


def _free_bytes(node: NodeReport) -> int:
    return node.usage.free_bytes if node.usage is not None else 0


def cut_on_head(
    source: ClusterSource,
    roles: Sequence[Checkpoint],
    world_size: int,
    checkpoint_dir: str,
    *,
    on_progress: OnProgress = silent,
    on_note: Callable[[str], None] = no_note,
) -> Beside:
    """Put the shards for so many ranks into the folder of the step on the head, beside the old ones.

    A call that was interrupted is repeated as it was: a job that is still at work is followed.

    Args:
        source: The cluster.
        roles: Of one step, all of one world size.
        world_size: Ranks that are going to resume.
        checkpoint_dir: The folder of checkpoints, on the head.
        on_progress: Called with bytes.
        on_note: Called with sentences.

    Raises:
        CheckpointError: It cannot be cut, or there is no room.
        ConnectionFailed: the cluster no longer answers; the job goes on.
        Interrupted: Ctrl-C; the job goes on.
    """
    first = roles[0]
    goal = f"{first.run} {first.step} {world_size}"
    jobs = source.connection.ray().list_jobs()
    at_work = [job for job in jobs if job.metadata.get(_GOAL) == goal and not job.status.is_terminal]
    if at_work:
        job = find_job(source.connection, at_work[-1].submission_id)
        on_note(f"job {job.submission_id} is at it already")
    else:
        give_up_s = (source.backoff or Backoff()).give_up_s
        wanted = HeadReshard(
            head_agent(source), first.run, first.step, first.world_size or 0, world_size, checkpoint_dir, give_up_s
        )
        job = start_on_head(source, "remote_reshard_main", asdict(wanted), {}, f"reshard-{first.step}", {_GOAL: goal})
    result = result_of(job, source, "reshard", on_progress, on_note=on_note)
    try:
        done = as_object(result["resharded"])
        return Beside(**{**done, "warnings": tuple(done["warnings"])})
    except NOT_AS_EXPECTED:
        raise no_result(job, "reshard", "it is not what a reshard says at its end") from None
