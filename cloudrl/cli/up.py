"""`cloudrl up`: start a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from cloudrl.cli import _output
from cloudrl.errors import InputError


def up(
    name: Annotated[str, typer.Argument(help="Name of the cluster.")] = "ray-cluster",
    on: Annotated[str, typer.Option("--on", metavar="PROVIDER", help="Where: local.")] = "local",
    nodes: Annotated[int, typer.Option(help="How many nodes.")] = 1,
    gpu: Annotated[str | None, typer.Option(help="GPUs of each node, as dstack writes them: 80GB:8.")] = None,
    data: Annotated[list[str] | None, typer.Option(help="A data set to prepare; may be repeated.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="A model to fetch; may be repeated.")] = None,
    setup: Annotated[
        list[str] | None, typer.Option(help="A shell command to run first, on every node.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A variable of every process.")
    ] = None,
    dashboard_port: Annotated[int | None, typer.Option(help="For Ray's dashboard; 8265 if free.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be started.")] = False,
) -> None:
    """Start a cluster and wait until it is READY."""
    from cloudrl.cli._live import watching
    from cloudrl.providers import provider
    from cloudrl.spec import Cluster

    where = provider(on)
    cluster = Cluster.load(
        {
            "name": name,
            "nodes": nodes,
            "gpu": gpu,
            "data": data or [],
            "models": model or [],
            "setup": setup or [],
            "env": dict(_pair(text) for text in env or []),
        }
    )
    plan = where.plan(cluster, dashboard_port=dashboard_port)
    if dry_run:
        _output.data(plan.render())
        return
    with watching() as on_status:
        connection = where.up(plan, on_status=on_status)
    _output.note(f"READY: {name} with {nodes} node{'s' * (nodes > 1)}, dashboard {connection.ray_url}")
    _output.hint(f"cloudrl submit grpo-tiny --cluster {name}\ncloudrl down {name}")
    _output.data(connection.ray_url)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--env {text!r} has no value", hint=f"--env {text}=VALUE")
    return key, value
