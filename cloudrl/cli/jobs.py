"""`cloudrl jobs`: list, status, logs and stop."""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from cloudrl.cli import _output
from cloudrl.cli._target import AddressOption, ClusterOption, connect
from cloudrl.providers.registry import find, provider

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cloudrl.jobs import Event, JobHandle
    from cloudrl.transport import Connection
    from cloudrl.transport.ray_job import RayJob

app = typer.Typer(help="List, watch and stop jobs.", no_args_is_help=True, rich_markup_mode=None)

_JOB_URL = re.compile(r"ray(?P<secure>\+https)?://(?P<place>.+)/(?P<id>[^/]+)")

JobArgument = Annotated[
    str | None,
    typer.Argument(metavar="[ID]", help="Submission id or ray:// URL; the newest job if left out."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable.")]


@app.command("list")
def list_(as_json: JsonOption = False, cluster: ClusterOption = None, address: AddressOption = None) -> None:
    """All submitted jobs, the oldest first."""
    from cloudrl.jobs import list_jobs

    jobs = list_jobs(connect(cluster, address))
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
    from cloudrl.cli._follow import target_options
    from cloudrl.errors import JobFailed
    from cloudrl.transport.ray_job import JobStatus

    job = _find(job_id, cluster, address).status()
    fields = _fields(job)
    if as_json:
        _output.as_json(fields)
    else:
        _output.table(("field", "value"), [(key, _cell(value)) for key, value in fields.items()])
    if job.status is JobStatus.FAILED:
        target = target_options(cluster, address)
        raise JobFailed(
            f"job {job.submission_id} failed", hint=f"cloudrl jobs logs {job.submission_id}{target}"
        )


@app.command()
def logs(
    job_id: JobArgument = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per event: line, step, progress.")
    ] = False,
    cluster: ClusterOption = None,
    address: AddressOption = None,
) -> None:
    """Print a job's log. With -f also what comes, each line once; exit code 4 when the job fails."""
    from cloudrl.cli._follow import goes_on, lost, target_options
    from cloudrl.jobs.events import read_events

    job = _find(job_id, cluster, address)
    if not follow:
        _print(job, read_events(job.logs(), total_steps=job.total_steps), as_json=as_json)
        return
    with goes_on(job, target_options(cluster, address)):
        events = job.follow(on_break=lambda failure: _output.note(lost(failure)))
        _print(job, events, as_json=as_json)


@app.command()
def stop(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Submission id or ray:// URL.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    address: AddressOption = None,
) -> None:
    """Stop a job and wait until it has ended. Its checkpoints stay."""
    from cloudrl.errors import InputError

    job = _find(job_id, cluster, address)
    before = job.status().status
    if not before.is_terminal and not _output.confirm(f"Stop job {job.submission_id}?", yes=yes):
        raise InputError(f"{job.submission_id} goes on")
    job.cancel()
    after = job.wait_terminal()
    if as_json:
        _output.as_json({"submission_id": job.submission_id, "status": str(after)})
        return
    _output.note(
        f"{job.submission_id} was not running: {before}"
        if before.is_terminal
        else f"{job.submission_id} has ended: {after}"
    )
    if job.checkpoint_dir is not None and not before.is_terminal:
        _output.note(f"checkpoints stay in {job.checkpoint_dir}; go on from them with --name {job.name}")


def _print(job: JobHandle, events: Iterable[Event], *, as_json: bool) -> None:
    """Lines as they come, or all events as JSON; raises `JobFailed` when they end with a failure."""
    from cloudrl.jobs import Ended, Line
    from cloudrl.jobs.format import as_fields
    from cloudrl.jobs.handle import raise_for_status

    for event in events:
        if as_json:
            _output.data(json.dumps(as_fields(event)))
        elif isinstance(event, Line):
            _output.data(_shown(event.text))
        if isinstance(event, Ended):
            raise_for_status(job, event)


def _find(job_id: str | None, cluster: str | None, address: str | None) -> JobHandle:
    """The job of that id or URL; the newest one for None."""
    from cloudrl.jobs import find_job
    from cloudrl.jobs.handle import newest_job

    if job_id is None:
        return newest_job(connect(cluster, address))
    url = _JOB_URL.fullmatch(job_id)
    if url is None:
        return find_job(connect(cluster, address), job_id)
    if cluster is None and address is None:
        return find_job(_connect_to(url["place"], "https" if url["secure"] else "http"), url["id"])
    return find_job(connect(cluster, address), url["id"])


def _connect_to(place: str, scheme: str) -> Connection:
    """The cluster of a job's URL: one of ours by its name or its dashboard's address, or any Ray."""
    if not {":", "."} & set(place):  # the name of a cluster, also of one that is over or another user's
        return connect(place, None)
    if scheme == "http":
        for each in find().running:
            connection = provider(each.provider).attach(each.name)
            if urlsplit(connection.ray_url).netloc == place.replace("localhost:", "127.0.0.1:"):
                return connection
    return connect(None, f"{scheme}://{place}")


def _fields(job: RayJob) -> dict[str, Any]:
    """What is worth knowing of a job, secrets masked."""
    from cloudrl.jobs.environment import redact, secret_values
    from cloudrl.jobs.submission import redact_command

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
    return (
        f"{datetime.fromtimestamp(job.start_time).astimezone():%Y-%m-%d %H:%M:%S}" if job.start_time else ""
    )


def _took(job: RayJob) -> str:
    import time

    from cloudrl.jobs.format import duration

    if job.start_time is None:
        return ""
    return duration((job.end_time or time.time()) - job.start_time)


def _recipe(job: RayJob) -> str:
    return job.metadata.get("cloudrl_recipe", "")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _shown(text: str) -> str:
    """A line of the log; colours only where they are seen."""
    from cloudrl.verl.metrics import without_ansi

    return text if sys.stdout.isatty() else without_ansi(text)
