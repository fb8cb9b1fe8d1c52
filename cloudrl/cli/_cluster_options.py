"""The options that declare a cluster, for every command that starts or writes one."""

import os
from typing import Annotated, Any

import typer

from cloudrl.cli._options import (
    ClusterOption,
    EnvOption,
    FileOption,
    GpuOption,
    SetOption,
    cluster_name,
    declared_fields,
    explicit,
    option,
    with_options,
)


def cluster_options(
    file: FileOption = None,
    nodes: Annotated[int | None, option("N", "Number of nodes.")] = None,
    gpu: GpuOption = None,
    image: Annotated[str | None, typer.Option(help="Container image. Default: verl's own.")] = None,
    setup: Annotated[list[str] | None, option("COMMAND", "Command to run first on every node. Repeatable.")] = None,
    secret: Annotated[list[str] | None, option("NAME", "dstack secret to pass to every process. Repeatable.")] = None,
    checkpoints: Annotated[str | None, option("DIR", "Folder on the nodes for checkpoints.")] = None,
    volume: Annotated[
        list[str] | None, option("A:B", "/host:/container, or name:/container for a network volume. Repeatable.")
    ] = None,
    down_when_idle: Annotated[
        str | None, option("TIME", "Stop the cluster after this long without a job: 30m.")
    ] = None,
    max_cost: Annotated[float | None, option("DOLLARS", "Stop the cluster once it has cost this much.")] = None,
    field: SetOption = None,
) -> dict[str, Any]:
    """Fields of `cloudrl.Cluster` by their names, and what `-f` and `--set` say for `declared_fields`."""
    return explicit(
        nodes=nodes, gpu=0 if gpu == "none" else gpu, image=image, setup=setup, secrets=secret,
        checkpoints=checkpoints, volumes=volume, down_when_idle=down_when_idle, max_cost=max_cost, file=file, set=field,
    )  # fmt: skip


@with_options(options=cluster_options)
def new_cluster(
    name: Annotated[str | None, typer.Argument(metavar="CLUSTER", help="Cluster name. Default: ray-cluster.")] = None,
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
    from cloudrl.jobs.environment import parse_env

    variables = parse_env(env, os.environ) if env else None
    mine = explicit(name=cluster_name(name, cluster), data=data, models=model, env=variables)
    return declared_fields({**options, **mine})
