"""Options that mean the same wherever they stand, declared once, and blocks of them that several commands share."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from cloudrl.errors import InputError
from cloudrl.options.declaration import Declared, declared, read_typed
from cloudrl.options.job import SubmitOptions
from cloudrl.options.machines import ClusterOptions, PreparedOptions
from cloudrl.plugins import own_providers, providers
from cloudrl.providers.registry import known_names, section_options

if TYPE_CHECKING:
    from cloudrl.jobs import JobHandle, Progress
    from cloudrl.transport.ray_job import JobStatus


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
        help="Cluster to use; not needed if there is only one. PROVIDER/NAME if two providers have one of that name.",
    ),
]  # fmt: skip
NewClusterOption = Annotated[
    str | None,
    option("NAME", "Name of the cluster to start. `run` uses one of that name that is up.", "--cluster", "-c"),
]
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
        "--on", metavar="PROVIDER", autocompletion=_complete(providers),
        help=f"Where to start the cluster: {' or '.join(own_providers())}.",
    ),
]  # fmt: skip
RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE", autocompletion=_complete(_recipe_names), help="Recipe name, a YAML file, or a script."
    ),
]
AlgorithmOption = Annotated[str | None, option("NAME", "Use another algorithm: dapo, rloo, gspo, ...")]
AfterOption = Annotated[
    str | None,
    option(
        "JOB", "Start once this job of the cluster has ended. A durable job waits there, any other one here.", "--after"
    ),
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
FileOption = Annotated[
    Path | None, option("FILE", "Read fields from a YAML file; options override them.", "--file", "-f")
]
SetOption = Annotated[list[str] | None, option("PATH=YAML", "Set any other field. Repeatable.", "--set")]


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
            for name, own_parameter in own.parameters.items()
            for parameter in (
                inspect.signature(blocks[name], eval_str=True).parameters.values()
                if name in blocks
                else [own_parameter]
            )
        ]
        with_blocks.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        with_blocks.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return with_blocks

    return decorate


def declared_options(fields: type) -> Callable[..., dict[str, Any]]:
    """A block of the options that a class declares on its fields; what comes of them is field -> value."""

    def read(**typed: Any) -> dict[str, Any]:
        return read_typed(fields, typed)

    read.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                entry.parameter,
                inspect.Parameter.KEYWORD_ONLY,
                default=False if entry.typed is bool else None,
                annotation=Annotated[entry.typed if entry.typed is bool else entry.typed | None, _shown(entry)],
            )
            for entry in declared(fields)
        ]
    )
    return read


def _shown(entry: Declared) -> Any:
    option = entry.option
    return typer.Option(
        *entry.names, metavar=option.metavar, help=option.help, min=option.least, max=option.most,
        envvar=option.variable,
    )  # fmt: skip


def _provider_options() -> Callable[..., list[str]]:
    """A block of the options that providers declare for their sections; what comes of them are values for `--set`."""
    declaring = section_options()

    def read(**typed: Any) -> list[str]:
        values = {name: read_typed(fields, typed) for name, fields in declaring.items()}
        return [f"{name}.{key}={json.dumps(value)}" for name in values for key, value in values[name].items()]

    blocks = map(declared_options, declaring.values())
    parameters = [parameter for block in blocks for parameter in inspect.signature(block).parameters.values()]
    read.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return read


@with_options(options=declared_options(ClusterOptions), of_providers=_provider_options())
def cluster_options(
    file: FileOption = None,
    *,
    options: dict[str, Any],
    of_providers: list[str],
    field: SetOption = None,
) -> dict[str, Any]:
    """Fields of `cloudrl.Cluster` by their names, and what `-f` and `--set` say for `declared_fields`."""
    return {**options, **explicit(file=file, set=[*of_providers, *(field or ())] or None)}


@with_options(prepared=declared_options(PreparedOptions), options=cluster_options)
def new_cluster(
    name: Annotated[str | None, typer.Argument(metavar="CLUSTER", help="Same as --cluster.")] = None,
    cluster: NewClusterOption = None,
    *,
    prepared: dict[str, Any],
    options: dict[str, Any],
) -> dict[str, Any]:
    """Fields of a cluster that has its data and models before any job comes."""
    return declared_fields({**options, **prepared, **explicit(name=cluster_name(name, cluster))})


class JobRequest(NamedTuple):
    """A recipe as a `Job`, what is asked for beyond it, and fields of the cluster, if it was taken from a script."""

    job: Any
    options: SubmitOptions
    cluster: Mapping[str, Any] = {}


@with_options(options=declared_options(SubmitOptions))
def requested_job(
    recipe: RecipeArgument,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Overrides of verl's configuration.")
    ] = None,
    algorithm: AlgorithmOption = None,
    *,
    options: dict[str, Any],
) -> JobRequest:
    """Raises: InputError: there is no such recipe, or a value is wrong."""
    from cloudrl import sdk
    from cloudrl.spec import parse_typed

    asked = SubmitOptions(overrides=parse_typed(overrides or ()), **options)
    if os.sep in recipe or Path(recipe).suffix:
        from cloudrl.sdk.importing import is_importable

        if is_importable(Path(recipe).expanduser()):
            return _job_of_script(recipe, asked, algorithm)
    return JobRequest(sdk.recipe(recipe, algorithm=algorithm), asked)


def _job_of_script(script: str, options: SubmitOptions, algorithm: str | None) -> JobRequest:
    from cloudrl.cli._terminal import Terminal
    from cloudrl.sdk.importing import job_of_script

    if algorithm is not None:
        raise InputError(f"--algorithm is for recipes, and {script} is a script", hint=f"cloudrl import {script}")
    with Terminal(prints_job=False) as terminal:
        return JobRequest(*job_of_script(script, options, confirm=terminal.confirm, on_progress=terminal))


def job_fields(
    job: JobHandle, last: Progress | None, *, followed: bool, status: JobStatus | None = None
) -> dict[str, Any]:
    """A job for a program. Its status, unless it is given, is asked for: its cluster has to be there."""
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
