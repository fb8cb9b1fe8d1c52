"""Has a job of a run's name go on from the newest step that all its ranks can load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudrl.jobs.compatibility import GPUS, NODES
from cloudrl.jobs.defaults import LOCAL_DIR
from cloudrl.jobs.overrides import integer, parse_overrides
from cloudrl.saves import resume as saves
from cloudrl.verl import has_key

if TYPE_CHECKING:
    from cloudrl.jobs.draft import JobDraft, Snapshot
    from cloudrl.jobs.options import SubmitOptions
    from cloudrl.spec import Job

_DECIDED_BY = {saves.RESUME_MODE, saves.RESUME_FROM, LOCAL_DIR}


def continues_a_run(job: Job, options: SubmitOptions) -> bool:
    """Whether what the cluster has saved decides where the job starts: it has a name, and nobody says otherwise."""
    given = parse_overrides(job.with_overrides(options.overrides).overrides)
    return options.name is not None and not given.keys() & _DECIDED_BY


def plan_resume(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    """Pass: go on from the newest step of the run, and say which.

    Unchanged where the user decides by overrides, for a plain Ray cluster, and for a verl that cannot go on.

    Raises:
        CheckpointError: The run has steps, and none of them can be loaded where the job is going to run.
        ConnectionFailed: A node is silent that may have the newest step.
    """
    cluster, saved, given = draft.cluster, snapshot.saved, draft.values
    if snapshot.is_expected and continues_a_run(draft.job, draft.options):
        return draft.noting("from which step the run continues is seen once the cluster is up")
    if (
        saved is None
        or cluster.checkpoint_dir is None
        or not has_key(cluster.verl_version, saves.RESUME_MODE)
    ):
        return draft
    if integer(given.get(NODES)) not in (None, cluster.nodes):  # nobody knows yet on which of the nodes
        return draft
    found = saves.plan_resume(
        saved,
        draft.name,
        world_size=cluster.nodes * (integer(given.get(GPUS)) or cluster.gpus_per_node),
        addresses=snapshot.addresses,
        checkpoint_dir=cluster.checkpoint_dir,
        cluster=cluster.name,
    )
    if found is None:
        return draft
    said = f"run {draft.name!r} continues from step {found.step}"
    return draft.noting(said, *found.notes).overriding(found.overrides)
