"""From which step an attempt goes on, and which steps have to make room for it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Collection, Dict, List, Mapping, Optional, Tuple

from cloudrl.durable.queue import Planned
from cloudrl.durable.verdicts import FULL_DISK
from cloudrl.errors import CheckpointError
from cloudrl.protocol.durable_jobs import DurableJob
from cloudrl.protocol.routes import CHECKPOINTS
from cloudrl.saves.inventory import Checkpoint, Inventory, resume_order
from cloudrl.saves.lineage import without_abandoned
from cloudrl.saves.names import step_folder
from cloudrl.saves.prune import plan_prune, removal_of
from cloudrl.saves.resume import Ranks, ResumePlan, plan_resume
from cloudrl.units import size_text


@dataclass(frozen=True)
class AttemptPlan:
    """How the next attempt of a job starts.

    Attributes:
        planned: its step, and what has verl go on from it.
        newer: (rank, path below its folder of checkpoints) of each later step, once for a folder that ranks share.
        resume: the step and its nodes; None where it begins anew, or where verl itself takes a step.
    """

    planned: Planned
    newer: Tuple[Tuple[int, str], ...] = ()
    resume: Optional[ResumePlan] = None


def plan_attempt(
    job: DurableJob, inventory: Inventory, ranks: Ranks, *, checkpoint_dir: str, cluster: str
) -> AttemptPlan:
    """Go on from the newest step that all ranks can load, or begin anew if none was ever whole.

    Args:
        job: that waits for its next attempt.
        inventory: of the cluster.
        ranks: of the job, and where they may run.
        checkpoint_dir: the folder of checkpoints, the same on every node.
        cluster: its name, for messages.

    Raises:
        CheckpointError: there are steps, and none can be loaded.
        ConnectionFailed: a node is silent that may have the newest one.
    """
    valid = without_abandoned(inventory, job)
    try:
        resume = plan_resume(valid, job.run, ranks=ranks, checkpoint_dir=checkpoint_dir, cluster=cluster)
    except CheckpointError:
        if _was_ever_saved(valid, job):
            raise
        return AttemptPlan(Planned(job.job_id, 0), _newer_steps(inventory, job.run, 0))
    if resume is None and not any(one.run == job.run for one in valid.checkpoints):  # nothing is saved that counts
        return AttemptPlan(Planned(job.job_id, 0), _newer_steps(inventory, job.run, 0))
    if resume is None:  # it is Megatron's, of which verl itself takes the step of its tracker
        return AttemptPlan(Planned(job.job_id, newest_whole(valid, job.run)))
    newer = _newer_steps(inventory, job.run, resume.step)
    return AttemptPlan(Planned(job.job_id, resume.step, resume.overrides), newer, resume)


def waits_for_room(
    job: DurableJob, inventory: Inventory, free_bytes: Mapping[int, int], savers: Collection[int], cluster: str
) -> str:
    """What a job waits for after a disk was full; "" once each node has room for its part of a save.

    Args:
        job: that waits for its next attempt.
        inventory: of the cluster; the largest step of the run tells how much a save takes.
        free_bytes: rank -> free on its disk of checkpoints, 0 if unknown.
        savers: ranks of the nodes that save their own part; one where all save into one folder.
        cluster: its name, for the remedy.
    """
    if job.last is None or job.last.signature != FULL_DISK or not savers:
        return ""
    sizes = (sum(role.size_bytes for role in roles) for roles in _steps_of(inventory, job.run).values())
    part_bytes = max(sizes, default=0) // len(savers)
    for rank in sorted(savers):
        free = free_bytes.get(rank, 0)
        if 0 < free < part_bytes:
            lacking = f"the disk of rank {rank} has {size_text(free)} left, and its part of a save takes "
            return f"{lacking}{size_text(part_bytes)}; {_room_text(job, inventory, cluster)}"
    return ""


def _room_text(job: DurableJob, inventory: Inventory, cluster: str) -> str:
    """What makes room: old steps of all runs, or the save that broke off."""
    if plan_prune(inventory, 1).removals:
        return f"make room: cloudrl checkpoints prune --cluster {cluster} --keep-last 1"
    steps = _steps_of(inventory, job.run)
    half = [step for step, roles in steps.items() if not all(role.complete for role in roles)]
    if not half:
        return "make room there"
    return f"make room there: {step_folder(job.run, max(half))} broke off, and may be removed"


def divides(job: DurableJob, nodes: int) -> bool:
    """Whether each of the cluster's nodes that is to train gets as many ranks as the others."""
    count = job.training_nodes or nodes
    return 0 < count <= nodes and job.world_size % count == 0


def newest_whole(inventory: Inventory, run: str) -> int:
    """The newest whole step of a run; 0 without such a step."""
    steps = _steps_of(inventory, run)
    return next((step for step in resume_order(steps) if all(role.complete for role in steps[step])), 0)


def _steps_of(inventory: Inventory, run: str) -> Dict[int, List[Checkpoint]]:
    """Step -> its roles."""
    steps: Dict[int, List[Checkpoint]] = {}
    for checkpoint in inventory.checkpoints:
        if checkpoint.run == run:
            steps.setdefault(checkpoint.step, []).append(checkpoint)
    return steps


def _was_ever_saved(inventory: Inventory, job: DurableJob) -> bool:
    """Whether a step of the run was whole once: half a step alone is that of an attempt lost in its first save."""
    roles = [role for steps in _steps_of(inventory, job.run).values() for role in steps]
    return any(role.tracked or role.complete for role in roles) or any(attempt.from_step for attempt in job.attempts)


def _newer_steps(inventory: Inventory, run: str, step: int) -> Tuple[Tuple[int, str], ...]:
    removals = (removal_of(roles) for later, roles in _steps_of(inventory, run).items() if later > step)
    return tuple(
        (location.ranks[0], removal.path)
        for removal in removals
        for location in removal.locations
        if location.ranks and location.ranks[0] >= 0 and location.root == CHECKPOINTS
    )
