"""Events and jobs as fields for a program. Pure functions."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from cloudrl.jobs.events import Event, Progress
from cloudrl.protocol.durable_jobs import DurableJob
from cloudrl.transport.ray_job import RayJob
from cloudrl.verl.charts import IN_PROGRESS


def as_fields(event: Event) -> dict[str, Any]:
    """The event's fields, and its kind under `event`; JSON has no NaN, so what is not finite is None.

    The metrics of a progress stand beside its other fields, None if verl has not reported them.
    """
    fields = asdict(event)
    if isinstance(event, Progress):
        fields |= {chart.progress: event.metrics.get(chart.progress) for chart in IN_PROGRESS}
        del fields["metrics"], fields["reported"]  # the event of the step has them
    return {"event": type(event).__name__.lower(), **_finite(fields)}


def job_fields(job: RayJob) -> dict[str, Any]:
    """What is worth knowing of a job, with secrets masked."""
    from cloudrl.jobs.redaction import redact, redact_command, secret_values

    fields = {
        "submission_id": job.submission_id,
        "status": str(job.status),
        "message": job.message,
        "recipe": job.metadata.get("cloudrl_recipe", ""),
        "name": job.metadata.get("job_name"),
        "checkpoint_dir": job.metadata.get("cloudrl_checkpoints"),
        "start_time": job.start_time,
        "end_time": job.end_time,
        "exit_code": job.driver_exit_code,
        "entrypoint": redact_command(job.entrypoint),
        "runtime_env": dict(job.runtime_env),
    }
    masked: dict[str, Any] = redact(fields, secret_values(job.variables))
    return masked


def waiting_fields(job: DurableJob) -> dict[str, Any]:
    """The same of a job that waits in the cluster's queue: what Ray does not know yet is None."""
    metadata = job.request.get("metadata") or {}
    return {
        "submission_id": job.next_submission_id,
        "status": "WAITING",
        "message": job.waits_for,
        "recipe": metadata.get("cloudrl_recipe", ""),
        "name": job.run,
        "checkpoint_dir": metadata.get("cloudrl_checkpoints"),
        "start_time": None,
        "end_time": None,
        "exit_code": None,
        "entrypoint": job.request.get("entrypoint", ""),
        "runtime_env": job.request.get("runtime_env") or {},
    }


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
