"""Has a job of a run's name go on from the newest step that all its ranks can load."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cloudrl.checkpoints.sources import ClusterSource
from cloudrl.jobs.compatibility import GPUS, NODES
from cloudrl.jobs.overrides import integer, parse_overrides
from cloudrl.saves.resume import RESUME_FROM, RESUME_MODE, plan_resume
from cloudrl.transport import inspect_cluster
from cloudrl.verl.keys import has_key

if TYPE_CHECKING:
    from cloudrl.jobs import SubmitOptions
    from cloudrl.spec import Job
    from cloudrl.transport import Connection

_DECIDED_BY = (RESUME_MODE, RESUME_FROM, "trainer.default_local_dir")


def apply_resume(
    connection: Connection, job: Job, options: SubmitOptions
) -> tuple[SubmitOptions, tuple[str, ...]]:
    """Have a job with a run's name go on from the newest step that it can load, and say which.

    Unchanged where the user decides by overrides, for a plain Ray cluster, and for a verl that cannot go on.

    Raises:
        CheckpointError: the run has steps, and none of them can be loaded where the job is going to run.
        ConnectionFailed: the cluster, or a node that may have the newest step, does not answer.
    """
    given = parse_overrides(job.with_overrides(options.overrides).overrides)
    agent = connection.agent()
    if options.name is None or agent is None or given.keys() & set(_DECIDED_BY):
        return options, ()
    cluster = inspect_cluster(connection)
    if cluster.checkpoint_dir is None or not has_key(cluster.verl_version or job.verl, RESUME_MODE):
        return options, ()
    if integer(given.get(NODES)) not in (None, cluster.nodes):  # nobody knows yet on which of the nodes
        return options, ()
    per_node = integer(given.get(GPUS)) or cluster.gpus_per_node
    addresses = {int(node["rank"]): str(node["ip"]) for node in agent.status()["nodes"]}
    inventory = ClusterSource(connection).inventory()
    found = plan_resume(
        inventory, options.name, world_size=cluster.nodes * per_node, addresses=addresses,
        checkpoint_dir=cluster.checkpoint_dir, cluster=cluster.name,
    )  # fmt: skip
    if found is None:
        return options, ()
    overrides = {**options.overrides, **found.overrides}
    said = f"run {options.name!r} continues from step {found.step}"
    return replace(options, overrides=overrides), (said, *found.notes)
