"""The options of a job, for every command that submits one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloudrl.cli._options import AlgorithmOption, EnvOption, explicit, option

if TYPE_CHECKING:
    from cloudrl.jobs import JobHandle, Progress, SubmitOptions
    from cloudrl.spec import Job

OverridesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Overrides of verl's configuration.")
]


def submit_options(
    model: Annotated[str | None, option("HUB_ID|./DIR", "Model: a Hub ID, or a folder here (with ./).")] = None,
    data: Annotated[
        list[str] | None,
        option(
            "NAME|PATH",
            "Data set of the cluster, a parquet file, or a folder with train.parquet and test.parquet. Repeatable.",
        ),
    ] = None,
    reward: Annotated[
        str | None, option("FILE.py[:FUNCTION]", "Reward function. Default FUNCTION: compute_score.")
    ] = None,
    algorithm: AlgorithmOption = None,
    steps: Annotated[int | None, option("N", "Total training steps.")] = None,
    name: Annotated[
        str | None, option("RUN", "Run name. Using the same name again resumes from its checkpoints.")
    ] = None,
    env: EnvOption = None,
    runtime_env: Annotated[
        Path | None, option("FILE", "Ray runtime environment as YAML, as in `ray job submit`.")
    ] = None,
    working_dir: Annotated[str | None, option("DIR", "Folder to upload; the job starts in it.")] = None,
    submission_id: Annotated[str | None, option("ID", "Ray's ID for the job; must be unused.")] = None,
) -> dict[str, Any]:
    """The same by the names of `cloudrl.jobs.SubmitOptions`."""
    return explicit(
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

    job = sdk.recipe(recipe, algorithm=options.get("algorithm"))
    own = {name: value for name, value in options.items() if name != "algorithm"}
    own |= {
        "overrides": dict(map(parse_override, overrides or ())),
        "env": parse_env(options.get("env", ()), os.environ),
        "data": tuple(options.get("data", ())),
        "runtime_env": load_runtime_env(options["runtime_env"]) if "runtime_env" in options else {},
    }
    return job, SubmitOptions(**own)


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
