"""Options that mean the same wherever they stand, declared once, and blocks of them that several commands share."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloudrl.errors import InputError
from cloudrl.providers.registry import PROVIDERS, known_names

if TYPE_CHECKING:
    from cloudrl.jobs import JobHandle, Progress, SubmitOptions
    from cloudrl.spec import Job
    from cloudrl.transport.ray_job import JobStatus


OverridesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Overrides of verl's configuration.")
]


def _recipe_names() -> list[str]:
    from cloudrl import recipes

    return recipes.names()


def _complete(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """What the shell is offered for a word that has only begun."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def option(metavar: str, text: str, *names: str) -> Any:
    """An option with a value: as help shows the value, what it is, and its names unless they follow the parameter's."""
    return typer.Option(*names, metavar=metavar, help=text)


ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster", "-c", metavar="NAME", autocompletion=_complete(known_names),
        help="Cluster to use; not needed if there is only one. PROVIDER/NAME if two providers have one of that name. "
        "Of a new cluster its name: ray-cluster by default.",
    ),
]  # fmt: skip
ClusterArgument = Annotated[
    str | None, typer.Argument(metavar="CLUSTER", autocompletion=_complete(known_names), help="Same as --cluster.")
]
AddressOption = Annotated[
    str | None, option("URL", "Dashboard of any Ray cluster, such as http://localhost:8265.", "--address")
]
KeptOption = Annotated[
    Path | None, option("DIR", "Folder of checkpoints that a cluster which is gone kept its logs in.", "--from")
]
OnOption = Annotated[
    str | None,
    typer.Option(
        "--on", metavar="PROVIDER", autocompletion=_complete(lambda: PROVIDERS),
        help=f"Where to start the cluster: {' or '.join(PROVIDERS)}.",
    ),
]  # fmt: skip
RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", autocompletion=_complete(_recipe_names), help="Recipe name, or a YAML file.")
]
AlgorithmOption = Annotated[str | None, option("NAME", "Use another algorithm: dapo, rloo, gspo, ...")]
AfterOption = Annotated[
    str | None, option("JOB", "Wait here until this job of the cluster has ended, then submit.", "--after")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WatchOption = Annotated[
    bool, typer.Option("--watch", "-w", help="Follow the job on one screen, as `cloudrl watch` does.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be sent, with secrets masked, and start nothing.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Answer yes to questions.")]
OutputOption = Annotated[Path | None, option("FILE", "Write YAML for `dstack apply`.", "--output", "-o")]
ProjectOption = Annotated[str | None, option("NAME", "dstack project, if not the default one.")]
GpuOption = Annotated[str | None, option("SPEC", "GPUs per node: 80GB..:8, amd:MI300X:8, none.")]
FileOption = Annotated[
    Path | None, option("FILE", "Read fields from a YAML file; options override them.", "--file", "-f")
]
SetOption = Annotated[list[str] | None, option("PATH=YAML", "Set any other field. Repeatable.", "--set")]
EnvOption = Annotated[
    list[str] | None, option("K[=V]", "Environment variable; K alone copies this shell's. Repeatable.", "--env", "-e")
]


def cluster_name(name: ClusterArgument = None, cluster: ClusterOption = None) -> str | None:
    """The cluster that a command was given, as its argument or by `--cluster`.

    Raises:
        InputError: it was given two.
    """
    if name is not None and cluster is not None and name != cluster:
        raise InputError(f"{name} and --cluster {cluster} name two clusters", hint="Pass only one of them")
    return name if name is not None else cluster


def explicit(**values: Any) -> dict[str, Any]:
    """Those that were given; the others are left to their fields' own defaults."""
    return {name: value for name, value in values.items() if value is not None}


def declared_fields(options: dict[str, Any]) -> dict[str, Any]:
    """The fields that options declare, over those of the file that is among them, with the values of `--set`.

    Args:
        options: field -> value, and the values of `-f` and `--set` under `file` and `set`.
    """
    from cloudrl import recipes

    fields = {name: value for name, value in options.items() if name not in ("file", "set")}
    return recipes.merge_fields(fields, options.get("file"), options.get("set") or ())


def with_options(**blocks: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the function gets each argument that is named here from a block of options.

    The parameters of the block stand in the command's help where that argument stands in its signature; what the
    block makes of their values is the argument. Blocks and function must not share a name of a parameter.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def with_blocks(**values: Any) -> Any:
            made = {
                name: block(**{key: values.pop(key) for key in inspect.signature(block).parameters})
                for name, block in blocks.items()
            }
            return function(**values, **made)

        own = inspect.signature(function, eval_str=True)
        parameters = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, each in own.parameters.items()
            for parameter in (
                inspect.signature(blocks[name], eval_str=True).parameters.values() if name in blocks else [each]
            )
        ]
        with_blocks.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        with_blocks.__annotations__ = {each.name: each.annotation for each in parameters}
        return with_blocks

    return decorate


def cluster_options(
    file: FileOption = None,
    nodes: Annotated[int | None, option("N", "Number of nodes.")] = None,
    gpu: GpuOption = None,
    image: Annotated[str | None, typer.Option(help="Container image. Default: verl's own.")] = None,
    setup: Annotated[list[str] | None, option("COMMAND", "Command to run first on every node. Repeatable.")] = None,
    secret: Annotated[list[str] | None, option("NAME", "Secret to pass to every process. Repeatable.")] = None,
    checkpoints: Annotated[str | None, option("DIR", "Folder on the nodes for checkpoints.")] = None,
    volume: Annotated[
        list[str] | None, option("A:B", "/host:/container, or name:/container for a network volume. Repeatable.")
    ] = None,
    down_when_idle: Annotated[
        str | None, option("TIME", "Stop the cluster after this long without a job: 30m.")
    ] = None,
    max_cost: Annotated[float | None, option("DOLLARS", "Stop the cluster once it has cost this much.")] = None,
    login: Annotated[str | None, option("USER@HOST", "Slurm login node, with --on slurm.")] = None,
    field: SetOption = None,
) -> dict[str, Any]:
    """Fields of `cloudrl.Cluster` by their names, and what `-f` and `--set` say for `declared_fields`."""
    if login is not None:
        field = [f"slurm.login={json.dumps(login)}", *(field or ())]
    return explicit(
        nodes=nodes, gpu=0 if gpu == "none" else gpu, image=image, setup=setup, secrets=secret,
        checkpoints=checkpoints, volumes=volume, down_when_idle=down_when_idle, max_cost=max_cost, file=file, set=field,
    )  # fmt: skip


@with_options(options=cluster_options)
def new_cluster(
    name: Annotated[str | None, typer.Argument(metavar="CLUSTER", help="Same as --cluster.")] = None,
    cluster: ClusterOption = None,
    data: Annotated[
        list[str] | None, option("NAME|HUB_ID|PATH", "Data set to prepare for jobs. Repeatable.", "--data")
    ] = None,
    model: Annotated[list[str] | None, option("HUB_ID", "Model to download for jobs. Repeatable.", "--model")] = None,
    env: EnvOption = None,
    *,
    options: dict[str, Any],
) -> dict[str, Any]:
    """Fields of a cluster that has its data and models before any job comes."""
    from cloudrl.jobs.options import parse_env

    variables = parse_env(env, os.environ) if env else None
    mine = explicit(name=cluster_name(name, cluster), data=data, models=model, env=variables)
    return declared_fields({**options, **mine})


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
    debug: Annotated[bool, typer.Option("--debug", help="Let breakpoint() wait for `cloudrl debug`.")] = False,
    post_mortem: Annotated[
        bool, typer.Option("--post-mortem", help="Let a task that fails wait, too. Implies --debug.")
    ] = False,
    legacy_debugger: Annotated[
        bool, typer.Option("--legacy-debugger", help="The same with pdb, Ray's legacy debugger. Implies --debug.")
    ] = False,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Send the job even if its verl configuration cannot work.")
    ] = False,
) -> dict[str, Any]:
    """The same by the names of `cloudrl.jobs.SubmitOptions`."""
    return explicit(
        model=model, data=data, reward=reward, algorithm=algorithm, steps=steps, name=name, env=env,
        runtime_env=runtime_env, working_dir=working_dir, submission_id=submission_id,
        debug="pdb" if legacy_debugger else "debugpy" if debug else None, post_mortem=post_mortem or None,
        unchecked=unchecked or None,
    )  # fmt: skip


def load(recipe: str, overrides: list[str] | None, options: dict[str, Any]) -> tuple[Job, SubmitOptions]:
    """The recipe and what the options ask for beyond it.

    Raises:
        InputError: there is no such recipe, or a value is none.
    """
    from cloudrl import sdk
    from cloudrl.jobs import SubmitOptions
    from cloudrl.jobs.options import load_runtime_env, parse_env
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


def job_fields(
    job: JobHandle, last: Progress | None, *, followed: bool, status: JobStatus | None = None
) -> dict[str, Any]:
    """A job for a program. Its status, if nobody has told it, is asked for: its cluster has to be there."""
    progress = {"step": last.step if last else None, "reward": last.reward if last else None}
    return {
        "submission_id": job.submission_id,
        "url": job.url,
        "name": job.name,
        "checkpoint_dir": job.checkpoint_dir,
        "total_steps": job.total_steps,
        "status": str(status or job.status().status),
        **(progress if followed else {}),
    }
