"""Jobs that another cluster has left on the volumes of this one: what is known of them, and how they go on here."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from cloudrl.errors import InputError
from cloudrl.jobs import JobHandle
from cloudrl.jobs.handle import newest_job
from cloudrl.jobs.supervised import find_recorded
from cloudrl.protocol.durable_jobs import Attempt, DurableJob, Result, Verdict
from cloudrl.saves.copies import is_safe, newest_whole_step
from cloudrl.saves.lineage import without_abandoned
from cloudrl.saves.survey import cluster_inventory
from cloudrl.sdk.callbacks import OnProgress, silent
from cloudrl.sdk.find import cluster_and_job
from cloudrl.transport import Connection


@dataclass(frozen=True)
class EarlierJob:
    """A durable job that the agents of this cluster do not carry, as its volumes remember it.

    Attributes:
        job: its record.
        cluster: the name of this cluster.
        step: the newest step that is whole on the nodes; None without one.
        is_step_safe: whether that outlives the loss of any one machine.
    """

    job: DurableJob
    cluster: str
    step: int | None
    is_step_safe: bool

    @property
    def status(self) -> str:
        """How it has ended, or that it has not, as far as its record tells."""
        if self.job.outcome is None:
            return "left with another cluster"
        return f"{self.job.outcome.result}: {self.job.outcome.reason}".removesuffix(": ")

    @property
    def step_text(self) -> str:
        """What of it is on the nodes now."""
        if self.step is None:
            return "no step is whole on these nodes"
        return f"step {self.step} is whole" + (", and outlives any one machine" if self.is_step_safe else "")

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Its attempts; the end of one that ran when it was left is not known here."""
        if self.job.open_attempt is None:
            return self.job.attempts
        return self.job.with_last(verdict=Verdict.UNKNOWN, reason="its end is not recorded here").attempts

    @property
    def next_command(self) -> str:
        """What has it go on here; "" for one that has succeeded."""
        if self.job.outcome is not None and self.job.outcome.result is Result.SUCCEEDED:
            return ""
        mirror = f" --mirror {shlex.quote(self.job.mirror)}" if self.job.mirror and self.step is None else ""
        return f"cloudrl jobs resume {self.job.job_id} --cluster {shlex.quote(self.cluster)}{mirror}"


def find_any_job(
    job_id: str | None = None,
    name: str | None = None,
    address: str | None = None,
    *,
    on_progress: OnProgress = silent,
) -> JobHandle | EarlierJob:
    """A job that the cluster knows, or one that another cluster has left on its volumes; see `find_job`.

    Raises:
        InputError: it does not exist.
        ConnectionFailed: no answer.
    """
    cluster, job_id = cluster_and_job(job_id, name, address, on_progress=on_progress)
    try:
        return newest_job(cluster.connection) if job_id is None else cluster.job(job_id)
    except InputError:
        earlier = _find_earlier(cluster.connection, job_id) if job_id is not None else None
        if earlier is None:
            raise
        return earlier


def _find_earlier(connection: Connection, job_id: str) -> EarlierJob | None:
    agent, job = connection.agent(), find_recorded(connection, job_id)
    if agent is None or job is None:
        return None
    inventory = without_abandoned(cluster_inventory(agent.status().nodes, agent.inventory), job)
    found = newest_whole_step(inventory, job.run, job.world_size)
    is_step_safe = found is not None and is_safe(found[1])
    return EarlierJob(job, connection.name, found[0] if found is not None else None, is_step_safe)
