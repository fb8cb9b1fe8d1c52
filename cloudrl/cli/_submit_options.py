"""The options of a job, for every command that submits one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloudrl.cli._options import AlgorithmOption, EnvOption, given

if TYPE_CHECKING:
    from cloudrl.jobs import JobHandle, Progress, SubmitOptions
    from cloudrl.spec import Job

OverridesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Overrides in verl's own keys.")
]


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
    algorithm: AlgorithmOption = None,
    steps: Annotated[int | None, typer.Option(help="Total training steps.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run; the same name again continues from its checkpoints.")
    ] = None,
    env: EnvOption = None,
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
    return given(
        model=model, data=data, reward=reward, algorithm=algorithm, steps=steps, name=name, env=env,
        runtime_env=runtime_env, working_dir=working_dir, submission_id=submission_id,
    )  # fmt: skip


def load(recipe: str, overrides: list[str] | None, options: dict[str, Any]) -> tuple[Job, SubmitOptions]:
    """The recipe and what the options ask for beyond it.

    Raises:
        InputError: there is no such recipe, or a value is none.
    """
    from cloudrl import sdk
    from cloudrl.jobs import SubmitOptions
    from cloudrl.jobs.environment import load_runtime_env, parse_env
    from cloudrl.spec import parse_override

    options = dict(options)
    job = sdk.recipe(recipe, algorithm=options.pop("algorithm", None))
    file = options.pop("runtime_env", None)
    return job, SubmitOptions(
        overrides=dict(parse_override(text) for text in overrides or ()),
        env=parse_env(options.pop("env", ()), os.environ),
        data=tuple(options.pop("data", ())),
        runtime_env=load_runtime_env(file) if file is not None else {},
        **options,
    )


def job_fields(job: JobHandle, last: Progress | None, *, followed: bool) -> dict[str, Any]:
    """A job for a program."""
    progress = {"step": last.step if last else None, "reward": last.reward if last else None}
    return {
        "submission_id": job.submission_id,
        "url": job.url,
        "name": job.name,
        "checkpoint_dir": job.checkpoint_dir,
        "total_steps": job.total_steps,
        "status": str(job.status().status),
        **(progress if followed else {}),
    }
