"""What a job that the agents carry through would be to Ray, as long as Ray does not know it, and over all attempts."""

from __future__ import annotations

from cloudrl.protocol.durable_jobs import DurableJob, Result
from cloudrl.transport.ray_job import JobStatus, RayJob

_RESULTS = {
    Result.SUCCEEDED: JobStatus.SUCCEEDED, Result.FAILED: JobStatus.FAILED, Result.STOPPED: JobStatus.STOPPED,
}  # fmt: skip


def status_of(left: DurableJob) -> JobStatus:
    """Of all attempts together."""
    if left.outcome is None or left.open_attempt is not None:
        return JobStatus.RUNNING
    return _RESULTS[left.outcome.result]


def waits_text(left: DurableJob) -> str:
    """Why Ray has no attempt of a job now."""
    return left.waits_for or "it starts when the jobs before it have ended"


def waiting_job(left: DurableJob, submission_id: str) -> RayJob:
    """A job as Ray would tell of it, which does not know it yet, or never will."""
    status, reason = JobStatus.PENDING, waits_text(left)
    if left.outcome is not None:
        status, reason = _RESULTS[left.outcome.result], left.outcome.reason
    request = left.request
    return RayJob(
        submission_id,
        status,
        message=reason,
        entrypoint=str(request.get("entrypoint", "")),
        metadata=request.get("metadata") or {},
        runtime_env=request.get("runtime_env") or {},
    )
