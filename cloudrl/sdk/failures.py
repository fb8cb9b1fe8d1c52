"""Why a job failed, on a cluster that is up or from what is kept of one that is gone."""

from __future__ import annotations

import shlex
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cloudrl.errors import CloudrlError, InputError
from cloudrl.jobs.handle import JobHandle
from cloudrl.jobs.hangs import hang_notice
from cloudrl.logs.archive import Archive, FolderArchive
from cloudrl.logs.causes import Cause, Finding, cluster_end
from cloudrl.logs.causes.finder import search
from cloudrl.logs.causes.kept import kept_evidence, newest_kept_job
from cloudrl.protocol.job_phases import JobState
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.progress import Notice
from cloudrl.providers.model import Status
from cloudrl.sdk.callbacks import OnProgress, notify, silent
from cloudrl.sdk.costs import prices
from cloudrl.sdk.find import Kept, cluster_of, find_job, find_kept, look, names_of
from cloudrl.transport.ray_job import JobStatus


@dataclass(frozen=True)
class Failure:
    """The end of a job.

    Attributes:
        submission_id: the job's; the name of a cluster that has failed before it had one.
        status: Ray's word for it; None where only its logs are left. The last one if `cluster_is_gone`.
        cause: None where it has not failed, or nothing says why.
        log_command: what prints its log.
        is_complete: whether all that is left of the job was looked at; else the search took too long.
        cluster_is_gone: whether its cluster does not answer, and this is from the logs that it has kept.
        job: where the job stands, with its hang if it has one; None after its end, and while that is unknown.
        price_per_hour: what the cluster costs in US dollars while the job hangs; None if it does not hang or the price
            is unknown.
    """

    submission_id: str
    status: str | None
    cause: Cause | None
    log_command: str
    is_complete: bool = True
    cluster_is_gone: bool = False
    job: JobState | None = None
    price_per_hour: float | None = None


def why(
    job_id: str | None = None,
    name: str | None = None,
    address: str | None = None,
    folder: Path | None = None,
    *,
    on_progress: OnProgress = silent,
) -> Failure:
    """The first root cause of a job's failure.

    Args:
        job_id: its submission id or `ray://` URL; None for the newest one.
        name: its cluster's. One on this machine may be down.
        address: of any Ray's dashboard.
        folder: of checkpoints, where the logs of a cluster that is gone are kept.
        on_progress: receives which of several clusters it is.

    Raises:
        InputError: there is no such job.
        ConnectionFailed: no answer, and nothing is kept here.
    """
    if folder is not None:
        return _kept(Kept(folder, job_id))
    name = cluster_of(job_id, name, address, on_progress=on_progress)
    try:
        job = find_job(job_id, name, address)
        status, finding, (state, price) = job.status().status, job.find_cause(), _state_of(job)
    except CloudrlError as error:
        return _of_cluster_that_is_gone(job_id, name, address, error, on_progress)
    log_command = f"cloudrl jobs logs {job.url}"
    return Failure(
        job.submission_id, str(status), finding.cause, log_command, finding.is_complete,
        job=None if status.is_terminal else state,  # the agent needs some seconds to see the end
        price_per_hour=price,
    )  # fmt: skip


def hang_of(cluster: Status) -> Notice | None:
    """What holds up the job of a cluster, with the price per hour; None while it goes on."""
    return hang_notice(cluster.job, time.time(), cluster.price_per_hour)


def newest_failure(cluster: Status) -> Failure | None:
    """That of the newest job, if it has failed; None also where only a new tunnel would lead to the cluster."""
    if not cluster.is_ready or cluster.dashboard_url is None:
        return None
    with suppress(CloudrlError):
        failure = why(name=f"{cluster.ref}")
        return failure if failure.status == JobStatus.FAILED else None
    return None


def _state_of(job: JobHandle) -> tuple[JobState | None, float | None]:
    """Where a job stands that runs, as rank 0's agent sees it, and what the cluster costs per hour if it hangs."""
    agent = job.connection.agent()
    status = agent.status() if agent is not None else None
    if status is None or status.job is None or status.job.submission_id != job.submission_id:
        return None, None
    found = prices(job.connection.name, status) if status.job.hang is not None else None
    return status.job, found[1] if found is not None else None


def _of_cluster_that_is_gone(
    job_id: str | None, name: str | None, address: str | None, error: CloudrlError, on_progress: OnProgress
) -> Failure:
    """From what is kept of a job, or from how its cluster ended; raises `error` if neither is known."""
    archived = find_kept(job_id, name, address)
    if archived is not None:
        try:
            return _kept(archived)
        except InputError as nothing_kept:
            error = nothing_kept
    failed = _failed_cluster(*names_of(job_id, name), on_progress) if address is None else None
    if failed is None:
        raise error
    return failed


def _failed_cluster(job_id: str | None, name: str | None, on_progress: OnProgress) -> Failure | None:
    """Why the nodes of a cluster have ended, as its provider tells it, where nothing of the job is on this machine."""
    statuses = []
    with suppress(CloudrlError):
        statuses = look(name) if name is not None else []
    if len(statuses) != 1 or statuses[0].phase is not Phase.FAILED or not statuses[0].reason:
        return None
    [status] = statuses
    if job_id is not None:
        notify(on_progress, f"nothing of job {job_id} is kept on this machine; this is how its cluster ended:")
    return Failure(
        job_id or f"{status.ref}",
        JobStatus.FAILED if job_id is None else None,
        cluster_end.cause_of(status.reason),
        f"cloudrl logs {status.ref}",
        cluster_is_gone=True,
    )


def _kept(place: Kept) -> Failure:
    archive = Archive(FolderArchive(place.folder))
    job = place.job_id or newest_kept_job(archive, place.cluster, place.run)
    evidence = kept_evidence(archive, job, cluster_is_over=place.is_over)
    status = evidence.state.job.get("status")
    has_failed = status in ("FAILED", None) or (evidence.was_running and cluster_end.has_failed(evidence))
    finding = search(evidence) if has_failed else Finding(None)
    of_run = f" --run {shlex.quote(place.run)}" if place.run is not None else ""
    logs = f"cloudrl logs --from {shlex.quote(str(place.folder))}{of_run}"
    return Failure(job, status, finding.cause, logs, finding.is_complete, cluster_is_gone=True)
