"""The options that declare a cluster, for every command that starts or writes one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from cloudrl.cli._options import FileOption, GpuOption, SetOption, declared_fields, given, no_gpus

DEFAULT_NAME = "ray-cluster"
_DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")

NewNameArgument = Annotated[
    str | None, typer.Argument(metavar="CLUSTER", help=f"Name of the cluster; {DEFAULT_NAME} unless given.")
]
ModelsOption = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="HUB_ID", help="A model that jobs train; may be repeated."),
]
DataOption = Annotated[
    list[str] | None,
    typer.Option(
        "--data", metavar="NAME|HUB_ID|PATH", help="A data set that jobs train on; may be repeated."
    ),
]


def cluster_options(
    file: FileOption = None,
    nodes: Annotated[int | None, typer.Option(metavar="N", help="How many nodes.")] = None,
    gpu: GpuOption = None,
    image: Annotated[str | None, typer.Option(help="Another container image than verl's.")] = None,
    setup: Annotated[
        list[str] | None, typer.Option(metavar="COMMAND", help="Run first, on every node; may be repeated.")
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A secret of dstack's that every process gets; may be repeated."),
    ] = None,
    checkpoints: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder on the nodes that jobs save into.")
    ] = None,
    volume: Annotated[
        list[str] | None,
        typer.Option(metavar="A:B", help="/host:/container, or a network volume, name:/container."),
    ] = None,
    down_when_idle: Annotated[
        str | None, typer.Option(metavar="TIME", help="End it after so long without a job: 30m.")
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option(metavar="DOLLARS", help="End it when it has cost so much in all.")
    ] = None,
    field: SetOption = None,
) -> dict[str, Any]:
    """The block of options of every command that declares a cluster, by the names of `cloudrl.Cluster`.

    Under `file` and `set` is what these two options say.
    """
    return given(
        nodes=nodes, gpu=no_gpus(gpu), image=image, setup=setup, secrets=secret, checkpoints=checkpoints,
        volumes=volume, down_when_idle=down_when_idle, max_cost=max_cost, file=file, set=field,
    )  # fmt: skip


def cluster_fields(options: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    """Fields of the cluster that options declare.

    Args:
        options: what `cluster_options` made, and others.
        defaults: for what neither options nor the file say.
    """
    options = dict(options)
    file, assignments = options.pop("file", None), options.pop("set", None)
    return declared_fields(options, file, assignments, **defaults)


def prepared(data: list[str] | None, model: list[str] | None, env: list[str] | None) -> dict[str, Any]:
    """Fields for what nodes have before any job comes."""
    from cloudrl.jobs.environment import parse_env

    variables = parse_env(env, os.environ) if env else None
    return given(data=data or None, models=model or None, env=variables)


def local_paths(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields for nodes on this machine: relative paths of data are its own."""
    if "data" not in fields:
        return fields
    return {**fields, "data": [_local(each) for each in fields["data"]]}


def _local(data: Any) -> Any:
    if not isinstance(data, dict):
        return local_path(data)
    paths = {key: local_path(data[key]) for key in ("name", "source") if isinstance(data.get(key), str)}
    return {**data, **paths}


def local_path(place: str) -> str:
    """A path of this machine made absolute; anything else as it is.

    As in a shell, `./x`, `../x` and `~/x` are paths, and so is `x.jsonl` or the like where it exists.
    """
    from cloudrl.jobs.local_files import is_marked

    path = Path(place).expanduser()
    is_here = is_marked(place) or (path.suffix in _DATA_SUFFIXES and path.exists())
    return str(path.resolve()) if is_here else place
