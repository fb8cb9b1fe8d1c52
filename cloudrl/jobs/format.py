"""Events and jobs as fields for a program. Pure functions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from cloudrl.durable.giving_up import step_text
from cloudrl.durable.progress import Recovery, recovery
from cloudrl.jobs.events import Event, Progress
from cloudrl.protocol.durable_jobs import Attempt, DurableJob
from cloudrl.protocol.mirrors import MirrorStatus
from cloudrl.transport.ray_job import RayJob
from cloudrl.units import duration_text, size_text
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


def attempt_fields(attempts: Sequence[Attempt]) -> list[dict[str, Any]]:
    """Each attempt of a job that goes on by itself, with what it took to be back after the one before."""
    fields = [asdict(attempt) for attempt in attempts]
    for later, (before, attempt) in zip(fields[1:], pairwise(attempts), strict=True):
        later["recovery"] = asdict(recovery(before, attempt))
    return fields


def attempt_rows(attempts: Sequence[Attempt]) -> list[tuple[str, ...]]:
    """The same for a person: attempt, from where, the last step, why it ended, and how it came back."""
    backs = ["", *(_back_text(recovery(*pair)) for pair in pairwise(attempts))]
    return [
        (
            str(attempt.number),
            step_text(attempt.from_step),
            str(max(attempt.step, attempt.saved_step) or ""),
            "" if attempt.verdict is None else f"{attempt.verdict}: {attempt.reason}".removesuffix(": "),
            back,
        )
        for attempt, back in zip(attempts, backs, strict=True)
    ]


def mirror_lines(statuses: Sequence[MirrorStatus], now: float) -> list[str]:
    """A line for the mirror of each run."""
    return [f"run {status.run} in {status.mirror}: {mirror_text(status, now)}" for status in statuses]


def mirror_text(status: MirrorStatus, now: float) -> str:
    """How far a mirror is: `step 40, 3 min 20 s ago; step 50 on its way, 1.2 GB of 4.6 GB, 210 MB a second, …`.

    Args:
        status: of the mirror of one run.
        now: seconds since the epoch.
    """
    newest = "no step yet" if status.step is None else f"step {status.step}"
    age = f", {duration_text(now - status.mirrored_at)} ago" if status.step is not None else ""
    words = [newest + age]
    if status.coming is not None:
        coming = f"step {status.coming} on its way, {size_text(status.sent_bytes)} of {size_text(status.size_bytes)}"
        left = status.size_bytes - status.sent_bytes
        if status.bytes_per_s and left:
            rate = size_text(status.bytes_per_s)
            coming += f", {rate} a second, {duration_text(left / status.bytes_per_s)} left"
        words.append(coming)
    if status.error:
        words.append(f"held up: {status.error}")
    return "; ".join(words)


def _back_text(recovery: Recovery) -> str:
    """Such as `after 3 min 10 s, first step 2 min 9 s later; 1 step again`."""
    words = []
    if recovery.start_s is not None:
        words.append(f"after {duration_text(recovery.start_s)}")
    if recovery.program_s is not None:
        words.append(f"first step {duration_text(recovery.program_s)} later")
    lost = recovery.lost_steps
    again = f"{lost} step{'s' if lost > 1 else ''} again" if lost else ""
    return "; ".join(filter(None, (", ".join(words), again)))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
