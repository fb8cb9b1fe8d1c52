"""`cloudrl jobs`: list, status, logs, stop and resume."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import AddressOption, ClusterOption, JsonOption, YesOption, option
from cloudrl.cli._terminal import Terminal

if TYPE_CHECKING:
    from cloudrl.jobs import JobHandle
    from cloudrl.protocol.durable_jobs import Attempt, DurableJob
    from cloudrl.sdk.callbacks import Update
    from cloudrl.sdk.earlier_jobs import EarlierJob
    from cloudrl.transport.ray_job import RayJob

app = typer.Typer(help="List, watch, stop and resume jobs.", no_args_is_help=True, rich_markup_mode=None)

JobArgument = Annotated[
    str | None, typer.Argument(metavar="ID", help="Submission ID or ray:// URL. Default: the newest job.")
]


@app.command("list")
def list_(as_json: JsonOption = False, cluster: ClusterOption = None, address: AddressOption = None) -> None:
    """List all submitted jobs, oldest first, and at the end those that wait in the cluster's queue."""
    from cloudrl.jobs.format import job_fields, waiting_fields
    from cloudrl.sdk.find import find

    found = find(cluster, address, on_progress=Terminal())
    jobs = found.jobs()
    known = {job.submission_id for job in jobs}
    left = [job for job in found.durable_jobs() if job.outcome is None]
    waiting = [job for job in left if job.is_waiting or job.submission_id not in known]
    _output.listing(
        [*(job_fields(job) for job in jobs), *map(waiting_fields, waiting)],
        ("id", "status", "started", "took", "recipe"),
        [*(_row(job) for job in jobs), *map(_waiting_row, waiting)],
        is_json=as_json,
        empty="There are no jobs.",
        next_command="cloudrl submit grpo-tiny",
    )


@app.command()
def status(
    job_id: JobArgument = None,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    address: AddressOption = None,
) -> None:
    """Show what Ray reports about a job, and each attempt of a durable one. Exit code 4 if it has failed.

    Of a durable job that an earlier cluster has left on the volumes of this one, show what they remember of it.
    """
    from cloudrl.errors import JobFailed
    from cloudrl.jobs.format import attempt_fields, job_fields, mirror_text
    from cloudrl.sdk.earlier_jobs import EarlierJob, find_any_job
    from cloudrl.sdk.run_warnings import taken_back
    from cloudrl.transport.ray_job import JobStatus

    handle = find_any_job(job_id, cluster, address, on_progress=Terminal())
    if isinstance(handle, EarlierJob):
        _show_earlier(handle, as_json=as_json)
        return
    job = handle.status()
    fields, attempts, mirror = job_fields(job), handle.attempts(), handle.mirror()
    if as_json:
        shown = None if mirror is None else asdict(mirror)
        _output.as_json({**fields, "attempts": attempt_fields(attempts), "mirror": shown})
    else:
        _output.table(("job", job.submission_id), _facts(job, fields))
        _show_attempts(attempts)
    if mirror is not None and not as_json:
        _output.note(f"{mirror.mirror}: {mirror_text(mirror, time.time())}")
    if not job.status.is_terminal and (notice := taken_back(handle)) is not None:
        _output.note(f"warning: {notice.text}")
        _output.hint(notice.hint)
    if job.status is JobStatus.FAILED and (waits_for := handle.waits_for()):
        _output.note(f"its next attempt waits: {waits_for}")
    elif job.status is JobStatus.FAILED:
        cause = handle.cause()
        raise JobFailed(f"job {job.submission_id} failed: {cause or job.message}", hint=f"cloudrl why {handle.url}")


@app.command()
def logs(
    job_id: JobArgument = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the job ends.")] = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    address: AddressOption = None,
) -> None:
    """Print a job's log. With -f, also new lines as they come; exit code 4 if the job fails.

    With --json, print one object per event: line, step, progress; with -f, at last also ended.
    """
    from cloudrl.jobs.events import EventReader
    from cloudrl.jobs.handle import FOLLOW
    from cloudrl.sdk.find import find_job
    from cloudrl.sdk.submission import follow as follow_job

    job = find_job(job_id, cluster, address, on_progress=Terminal())
    show = partial(_show, as_json=as_json)
    if follow:
        follow_job(job, on_progress=show, command=FOLLOW)
        return
    for event in EventReader(job.total_steps).read(job.logs()):
        show(event)


@app.command()
def stop(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Submission ID or ray:// URL.")],
    yes: YesOption = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    address: AddressOption = None,
) -> None:
    """Stop a job and wait until it has ended. Its checkpoints are kept."""
    from cloudrl.sdk.choose import Purpose
    from cloudrl.sdk.find import find_job
    from cloudrl.sdk.submission import stop_job

    with Terminal(yes=yes) as terminal:
        job = find_job(job_id, cluster, address, purpose=Purpose.END)
        status = stop_job(job, confirm=terminal.confirm, on_progress=terminal)
    if as_json:
        _output.as_json({"submission_id": job.submission_id, "status": str(status)})


@app.command()
def resume(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="ID of a durable job.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="In verl's own keys, in place of the job's.")
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            metavar="N",
            min=1,
            help="Nodes that train. Default: all, or the job's own number.",
        ),
    ] = None,
    mirror: Annotated[
        str | None,
        option(
            "URL", "Keep copies of a durable job's steps in a folder or bucket that outlives the machines.", "--mirror"
        ),
    ] = None,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    address: AddressOption = None,
) -> None:
    """Start a durable job again, from the newest step that is whole.

    It has ended, or was left with an earlier cluster whose checkpoints this one has, or a mirror. It takes all GPUs of
    the cluster unless --nodes says less. If another number of GPUs has saved the step, the head cuts its shards anew
    first; the old ones stay.
    """
    from cloudrl.jobs.handle import way_back
    from cloudrl.sdk.choose import Purpose
    from cloudrl.sdk.find import find
    from cloudrl.spec import parse_typed

    changed = parse_typed(overrides or [])
    with Terminal() as terminal:
        found = find(cluster, address, purpose=Purpose.CHANGE, on_progress=terminal)
        job = found.resume(job_id, changed, nodes=nodes, mirror=mirror, on_progress=terminal)
    _output.result(job.url, {"submission_id": job.submission_id, "url": job.url}, is_json=as_json)
    _output.hint(way_back(job.url))


def _show_attempts(attempts: Sequence[Attempt]) -> None:
    from cloudrl.jobs.format import attempt_rows

    if attempts:
        _output.data("")
        _output.table(("attempt", "from", "last step", "ended", "came back"), attempt_rows(attempts))


def _show_earlier(earlier: EarlierJob, *, as_json: bool) -> None:
    """A job that the agents of this cluster do not carry: its story, and what has it go on."""
    from cloudrl.errors import JobFailed
    from cloudrl.jobs.format import attempt_fields, waiting_fields

    job = earlier.job
    if as_json:
        fields = {**waiting_fields(job), "submission_id": job.submission_id, "status": earlier.status}
        attempts = attempt_fields(earlier.attempts)
        _output.as_json({**fields, "step": earlier.step, "attempts": attempts, "next_command": earlier.next_command})
    else:
        facts = {"status": earlier.status, "run": job.run, "steps": earlier.step_text, "mirror": job.mirror}
        _output.table(("job", job.job_id), [(head, text) for head, text in facts.items() if text])
        _show_attempts(earlier.attempts)
    if job.has_failed:
        raise JobFailed(f"job {job.job_id} {earlier.status}", hint=earlier.next_command)
    if earlier.next_command:
        _output.hint(f"If no other cluster has it, it goes on here: {earlier.next_command}")


def show_end(job: JobHandle) -> None:
    """Say where the checkpoints of a job that has succeeded are, and what one does next."""
    from cloudrl.jobs.handle import next_commands

    where = f"; checkpoints are in {job.checkpoint_dir}" if job.checkpoint_dir else ""
    _output.note(f"{job.submission_id} succeeded{where}")
    _output.hint(next_commands(job))


def _show(update: Update, *, as_json: bool) -> None:
    """An event as JSON, or a line of the log; colours only where they are seen."""
    from cloudrl.jobs import Line
    from cloudrl.jobs.format import as_fields
    from cloudrl.sdk.callbacks import Notice, Waiting

    if isinstance(update, Notice):
        _output.note(update.text)
        if update.hint:
            _output.hint(update.hint)
    elif as_json and not isinstance(update, Waiting):
        _output.data(json.dumps(as_fields(update)))  # type: ignore[arg-type]
    elif isinstance(update, Line):
        _output.data(update.readable if sys.stdout.isatty() else f"{update}")


def _facts(job: RayJob, fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a person wants to know of a job; all of it, with its whole command and environment, is in --json."""
    words = _words(str(fields["entrypoint"]))
    overrides = sum("=" in word for word in words)
    program = " ".join(word for word in words if "=" not in word)
    more = f", and {overrides} overrides: cloudrl jobs status {job.submission_id} --json" if overrides else ""
    _, status, started, took, recipe = _row(job)
    ended = [line for line in str(fields["message"] or "").splitlines() if line.strip()]
    exit_code = fields["exit_code"]
    rows = {
        "status": status + (f", exit code {exit_code}" if exit_code is not None else ""),
        "recipe": recipe,
        "run": fields["name"] or "",
        "started": started,
        "took": took,
        "checkpoints": fields["checkpoint_dir"] or "",
        "message": ended[-1] if ended else "",
        "command": program + more,
    }
    return [(head, text) for head, text in rows.items() if text]


def _words(command: str) -> list[str]:
    """The words of a command as its shell reads them; a command of others may not be one of words."""
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _waiting_row(job: DurableJob) -> tuple[str, ...]:
    recipe = str((job.request.get("metadata") or {}).get("cloudrl_recipe", ""))
    return job.next_submission_id, "WAITING", "", "", f"{recipe}: {job.waits_for}" if job.waits_for else recipe


def _row(job: RayJob) -> tuple[str, ...]:
    from cloudrl.units import duration_text

    recipe = job.metadata.get("cloudrl_recipe", "")
    if not job.start_time:
        return job.submission_id, str(job.status), "", "", recipe
    started = f"{datetime.fromtimestamp(job.start_time).astimezone():%Y-%m-%d %H:%M:%S}"
    took = duration_text((job.end_time or time.time()) - job.start_time)
    return job.submission_id, str(job.status), started, took, recipe
