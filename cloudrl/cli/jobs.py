"""`cloudrl jobs`: list, status, logs and stop."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import AddressOption, ClusterOption, JsonOption, YesOption

if TYPE_CHECKING:
    from cloudrl.sdk.callbacks import Update
    from cloudrl.transport.ray_job import RayJob

app = typer.Typer(help="List, watch and stop jobs.", no_args_is_help=True, rich_markup_mode=None)

JobArgument = Annotated[
    str | None,
    typer.Argument(metavar="ID", help="Submission id or ray:// URL; the newest job if left out."),
]


@app.command("list")
def list_(as_json: JsonOption = False, cluster: ClusterOption = None, address: AddressOption = None) -> None:
    """All submitted jobs, the oldest first."""
    from cloudrl.sdk.find import find

    jobs = find(cluster, address).jobs()
    if as_json:
        _output.as_json([_fields(job) for job in jobs])
    elif jobs:
        rows = [(job.submission_id, str(job.status), _started(job), _took(job), _recipe(job)) for job in jobs]
        _output.table(("id", "status", "started", "took", "recipe"), rows)
    else:
        _output.note("No job was submitted.")
        _output.hint("cloudrl submit grpo-tiny")


@app.command()
def status(
    job_id: JobArgument = None,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    address: AddressOption = None,
) -> None:
    """What Ray says of a job. Exit code 4 when it has failed."""
    from cloudrl.errors import JobFailed
    from cloudrl.sdk.find import find_job
    from cloudrl.transport.ray_job import JobStatus

    handle = find_job(job_id, cluster, address)
    job = handle.status()
    fields = _fields(job)
    if as_json:
        _output.as_json(fields)
    else:
        _output.table(("field", "value"), [(key, _cell(value)) for key, value in fields.items()])
    if job.status is JobStatus.FAILED:
        raise JobFailed(f"job {job.submission_id} failed", hint=f"cloudrl jobs logs {handle.url}")


@app.command()
def logs(
    job_id: JobArgument = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    address: AddressOption = None,
) -> None:
    """Print a job's log. With -f also what comes, each line once; exit code 4 when the job fails.

    With --json one object per event: line, step, progress.
    """
    from cloudrl.jobs.events import EventReader
    from cloudrl.sdk.find import find_job
    from cloudrl.sdk.submission import follow as follow_job

    job = find_job(job_id, cluster, address)
    show = _event_as_json if as_json else _show_line
    if follow:
        follow_job(job, on_progress=show)
        return
    for event in EventReader(job.total_steps).read(job.logs()):
        show(event)


@app.command()
def stop(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Submission id or ray:// URL.")],
    yes: YesOption = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    address: AddressOption = None,
) -> None:
    """Stop a job and wait until it has ended. Its checkpoints stay."""
    from cloudrl.cli._terminal import Terminal
    from cloudrl.sdk.find import find_job
    from cloudrl.sdk.submission import stop_job

    with Terminal(yes=yes) as terminal:
        job = find_job(job_id, cluster, address)
        status = stop_job(job, confirm=terminal.confirm, on_progress=terminal)
    if as_json:
        _output.as_json({"submission_id": job.submission_id, "status": str(status)})


def _event_as_json(update: Update) -> None:
    from cloudrl.jobs.format import as_fields
    from cloudrl.sdk.callbacks import Notice

    if isinstance(update, Notice):
        _output.note(update.text)
    else:
        _output.data(json.dumps(as_fields(update)))  # type: ignore[arg-type]


def _show_line(update: Update) -> None:
    """A line of the log; colours only where they are seen."""
    from cloudrl.jobs import Line
    from cloudrl.sdk.callbacks import Notice
    from cloudrl.verl.metrics import without_ansi

    if isinstance(update, Notice):
        _output.note(update.text)
    elif isinstance(update, Line):
        _output.data(update.text if sys.stdout.isatty() else without_ansi(update.text))


def _fields(job: RayJob) -> dict[str, Any]:
    """What is worth knowing of a job, secrets masked."""
    from cloudrl.jobs.redaction import redact, redact_command, secret_values

    secrets = secret_values(job.runtime_env.get("env_vars") or {})
    fields = {
        "submission_id": job.submission_id,
        "status": str(job.status),
        "message": job.message,
        "recipe": _recipe(job),
        "name": job.metadata.get("job_name"),
        "checkpoint_dir": job.metadata.get("cloudrl_checkpoints"),
        "start_time": job.start_time,
        "end_time": job.end_time,
        "exit_code": job.driver_exit_code,
        "entrypoint": redact_command(job.entrypoint),
        "runtime_env": dict(job.runtime_env),
    }
    return {str(key): value for key, value in redact(fields, secrets).items()}


def _started(job: RayJob) -> str:
    if not job.start_time:
        return ""
    return f"{datetime.fromtimestamp(job.start_time).astimezone():%Y-%m-%d %H:%M:%S}"


def _took(job: RayJob) -> str:
    from cloudrl.jobs.format import duration

    return "" if job.start_time is None else duration((job.end_time or time.time()) - job.start_time)


def _recipe(job: RayJob) -> str:
    return job.metadata.get("cloudrl_recipe", "")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, dict) else str(value)
