"""`cloudrl submit`: a recipe, completed for a cluster, as a job."""

from __future__ import annotations

import os
from pathlib import Path  # noqa: TC003 - Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloudrl.cli import _output
from cloudrl.cli._target import AddressOption, ClusterOption, connect

if TYPE_CHECKING:
    from cloudrl.jobs import JobHandle, Progress
    from cloudrl.jobs.submit import Prepared

_MIB = 2**20
_SLOW_TO_READ_BYTES = 256 * _MIB


def submit(
    recipe: Annotated[str, typer.Argument(help="A recipe by name (cloudrl recipes list), or a YAML file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides in verl's own keys.")
    ] = None,
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
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not follow the job.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be sent, secrets masked.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    cluster: ClusterOption = None,
    address: AddressOption = None,
) -> None:
    """Submit a job and follow it. Ctrl-C leaves it running. Exit code 4 when it fails.

    Files: ./x, ../x, ~/x, and x where it exists here, are of this machine and sent along; /x is a path on the nodes;
    owner/name is a model on the Hub. That holds for --model, --data, --reward and every override under which verl
    reads a file, such as data.train_files=./mine.parquet.

    Secrets: HF_TOKEN and the loggers' keys are passed on from this shell where the job needs them, others with
    --env NAME. They reach the job through the cluster's agents, and no file or log.
    """
    from cloudrl import recipes
    from cloudrl.cli._follow import target_options, way_back
    from cloudrl.jobs import Wishes, prepare
    from cloudrl.jobs.environment import load_runtime_env, parse_env
    from cloudrl.spec import parse_override

    job = recipes.load(recipe)
    if algorithm is not None:
        job = recipes.with_algorithm(job, algorithm)
    wishes = Wishes(
        overrides=dict(parse_override(text) for text in overrides or ()),
        name=name,
        steps=steps,
        model=model,
        data=tuple(data or ()),
        reward=reward,
        env=parse_env(env or (), os.environ),
        runtime_env=load_runtime_env(runtime_env) if runtime_env is not None else {},
        working_dir=working_dir,
        submission_id=submission_id,
    )
    prepared = prepare(connect(cluster, address), job, wishes, on_read=_say_what_is_read)
    _say_what_is_coming(prepared)
    if dry_run:
        shown = prepared.submission
        everything = {**shown.masked_request(), **shown.sent_before()}
        _output.as_json(everything) if as_json else _output.data(shown.render())
        return
    handle, target = _send(prepared), target_options(cluster, address)
    if not as_json:
        _output.data(handle.url)
    if no_wait:
        _output.hint(way_back(handle, target))
        last = None
    else:
        last = _follow(handle, target, as_json=as_json)
        _output.note(f"{handle.submission_id} succeeded; checkpoints are in {handle.checkpoint_dir}")
    if as_json:
        _output.as_json(_result(handle, last, followed=not no_wait))


def _say_what_is_read(text: str, size_bytes: int) -> None:
    if size_bytes > _SLOW_TO_READ_BYTES:
        _output.note(f"reading {text} ({size_bytes / _MIB:.1f} MiB) to see whether the cluster has it")


def _say_what_is_coming(prepared: Prepared) -> None:
    from cloudrl.node.uploads import size_text

    for sentence in prepared.submission.notes:
        _output.note(f"note: {sentence}")
    for item in prepared.submission.files:
        way = "in the package" if item.by == "package" else "through the agents"
        _output.note(f"{item.text} ({size_text(item.size_bytes)}) -> {item.to}, {way}")
    package = prepared.package
    if package is not None:
        left_out = f"; left out: {', '.join(package.left_out)}" if package.left_out else ""
        size = (
            f"{package.files} file{'' if package.files == 1 else 's'}, {len(package.content) / _MIB:.1f} MiB"
        )
        _output.note(f"working directory: {size} packed{left_out}")


def _send(prepared: Prepared) -> JobHandle:
    from cloudrl.jobs import send

    shown = (0, -1)

    def on_upload(done: int, total: int) -> None:
        nonlocal shown
        quarter = (total, 4 * done // max(total, 1))
        if total > _MIB and quarter != shown:  # a small one is there before anybody could read of it
            shown = quarter
            _output.note(f"uploaded {done / _MIB:.1f} of {total / _MIB:.1f} MiB")

    return send(prepared, on_upload=on_upload, on_wait=_output.note)


def _follow(job: JobHandle, target: str, *, as_json: bool) -> Progress | None:
    """Follow to the end; a program gets its JSON for a failed job, too."""
    from cloudrl.cli._follow import follow_progress
    from cloudrl.errors import JobFailed

    try:
        return follow_progress(job, target=target)
    except JobFailed:
        if as_json:
            _output.as_json(_result(job, None, followed=True))
        raise


def _result(job: JobHandle, last: Progress | None, *, followed: bool) -> dict[str, Any]:
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
