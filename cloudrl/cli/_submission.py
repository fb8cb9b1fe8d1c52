"""A job on its way to a cluster, for every command that submits one: its options, what is said, sent and shown."""

from __future__ import annotations

import os
from pathlib import Path  # noqa: TC003 - Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloudrl.cli import _output

if TYPE_CHECKING:
    from cloudrl.jobs import JobHandle, Progress, SubmitOptions
    from cloudrl.jobs.submission import Submission
    from cloudrl.jobs.submit import PreparedSubmission
    from cloudrl.jobs.working_dir import PackagePlan
    from cloudrl.providers.model import Plan
    from cloudrl.spec import Job
    from cloudrl.transport import Connection

_MIB = 2**20
_SLOW_TO_READ_BYTES = 256 * _MIB

RecipeArgument = Annotated[
    str, typer.Argument(help="A recipe by name (cloudrl recipes list), or a YAML file.")
]
OverridesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides in verl's own keys.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable.")]


def submit_options(
    model: Annotated[
        str | None,
        typer.Option(metavar="HUB_ID|./DIR", help="The model: on the Hub, or a folder here (with ./)."),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|PATH",
            help="A data set of the cluster, a parquet file, or a folder with train.parquet and test.parquet.",
        ),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(metavar="FILE.py[:FUNCTION]", help="Reward function; compute_score unless named."),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Train by another algorithm than the recipe's: dapo, rloo, gspo, ..."
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Total training steps.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run; the same name again continues from its checkpoints.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="K[=V]", help="Variable of the job; K alone takes this shell's."),
    ] = None,
    runtime_env: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Ray runtime environment as YAML, as `ray job submit` takes."),
    ] = None,
    working_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder to send along; the job starts in it.")
    ] = None,
    submission_id: Annotated[
        str | None, typer.Option(help="Ray's id of the job; refused when it is taken.")
    ] = None,
) -> dict[str, Any]:
    """The block of options of every command that submits a job, by the names of `cloudrl.jobs.SubmitOptions`."""
    return {
        "model": model, "data": data, "reward": reward, "algorithm": algorithm, "steps": steps, "name": name,
        "env": env, "runtime_env": runtime_env, "working_dir": working_dir, "submission_id": submission_id,
    }  # fmt: skip


def load(recipe: str, overrides: list[str] | None, given: dict[str, Any]) -> tuple[Job, SubmitOptions]:
    """The recipe and what the options ask for beyond it.

    Args:
        recipe: a name or a file.
        overrides: as they were typed.
        given: what `submit_options` made.

    Raises:
        InputError: there is no such recipe, or a value is none.
    """
    from cloudrl import recipes
    from cloudrl.jobs import SubmitOptions
    from cloudrl.jobs.environment import load_runtime_env, parse_env
    from cloudrl.spec import parse_override

    job = recipes.load(recipe)
    if given["algorithm"] is not None:
        job = recipes.with_algorithm(job, given["algorithm"])
    file = given["runtime_env"]
    return job, SubmitOptions(
        overrides=dict(parse_override(text) for text in overrides or ()),
        env=parse_env(given["env"] or (), os.environ),
        data=tuple(given["data"] or ()),
        runtime_env=load_runtime_env(file) if file is not None else {},
        **{key: given[key] for key in ("name", "steps", "model", "reward", "working_dir", "submission_id")},
    )


def prepared_for(connection: Connection, job: Job, options: SubmitOptions) -> PreparedSubmission:
    """Read what goes along, and say what is coming."""
    from cloudrl.jobs import prepare

    prepared = prepare(connection, job, options, on_read=_say_what_is_read)
    _say_what_is_coming(prepared.submission, prepared.package)
    return prepared


def preview(planned: Plan, job: Job, options: SubmitOptions) -> Submission:
    """The same for a cluster that is only declared, as a dry run shows it."""
    from cloudrl.jobs import submission_of
    from cloudrl.jobs.run_plan import expected_snapshot
    from cloudrl.jobs.submit import read_and_plan

    snapshot = expected_snapshot(planned, job, options, shell=os.environ)
    draft = read_and_plan(job, options, snapshot, on_read=_say_what_is_read)
    submission = submission_of(draft)
    _say_what_is_coming(submission, draft.package)
    return submission


def _say_what_is_read(text: str, size_bytes: int) -> None:
    if size_bytes > _SLOW_TO_READ_BYTES:
        _output.note(f"reading {text} ({size_bytes / _MIB:.1f} MiB) to see whether the cluster has it")


def _say_what_is_coming(submission: Submission, package: PackagePlan | None) -> None:
    from cloudrl.node.uploads import size_text

    for sentence in submission.notes:
        _output.note(f"note: {sentence}")
    for item in submission.uploads:
        way = "in the package" if item.by == "package" else "through the agents"
        _output.note(f"{item.text} ({size_text(item.size_bytes)}) -> {item.to}, {way}")
    if package is not None:
        excluded = f"; left out: {', '.join(package.excluded)}" if package.excluded else ""
        size = f"{package.files} file{'' if package.files == 1 else 's'}, {package.size_bytes / _MIB:.1f} MiB"
        _output.note(f"working directory: {size}{excluded}")


def send(prepared: PreparedSubmission) -> JobHandle:
    """Upload what is missing and submit, saying how far it is."""
    from cloudrl import jobs

    shown = (0, -1)

    def on_upload(done: int, total: int) -> None:
        nonlocal shown
        quarter = (total, 4 * done // max(total, 1))
        if total > _MIB and quarter != shown:  # a small one is there before anybody could read of it
            shown = quarter
            _output.note(f"uploaded {done / _MIB:.1f} of {total / _MIB:.1f} MiB")

    return jobs.send(prepared, on_upload=on_upload, on_wait=_output.note)


def follow(job: JobHandle, target: str, *, as_json: bool) -> Progress | None:
    """Follow to the end; a program gets its JSON for a failed job, too."""
    from cloudrl.cli._follow import follow_progress
    from cloudrl.errors import JobFailed

    try:
        return follow_progress(job, target=target)
    except JobFailed:
        if as_json:
            _output.as_json(result(job, None, followed=True))
        raise


def result(job: JobHandle, last: Progress | None, *, followed: bool) -> dict[str, Any]:
    return {
        "submission_id": job.submission_id,
        "url": job.url,
        "name": job.name,
        "checkpoint_dir": job.checkpoint_dir,
        "total_steps": job.total_steps,
        "status": str(job.status().status),
        **(
            {"step": last.step if last else None, "reward": last.reward if last else None} if followed else {}
        ),
    }
