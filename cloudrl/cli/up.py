"""`cloudrl up`: start a cluster."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloudrl.cli import _cluster_options as options
from cloudrl.cli import _data_options as of_data
from cloudrl.cli import _output
from cloudrl.cli._interrupts import cluster_goes_on, nothing_started
from cloudrl.cli._option_groups import with_options
from cloudrl.cli._write_file import YesOption  # noqa: TC001 - Typer reads the annotations
from cloudrl.errors import CloudrlError

if TYPE_CHECKING:
    from cloudrl.providers.model import Plan, Provider
    from cloudrl.transport import Connection

_PORT = Annotated[int | None, typer.Option(help="For Ray's dashboard; 8265 if free.")]


@with_options(described=of_data.fields, shape=options.shape)
def up(
    name: options.NameArgument = "ray-cluster",
    on: options.OnOption = "local",
    nodes: options.NodesOption = 1,
    gpu: options.GpuOption = None,
    data: options.DataOption = None,
    model: options.ModelOption = None,
    env: options.EnvOption = None,
    *,
    described: dict[str, Any],
    shape: dict[str, Any],
    dashboard_port: _PORT = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be started.")] = False,
    yes: YesOption = False,
) -> None:
    """Start a cluster and wait until it is READY. It goes on when this command ends.

    Ctrl-C leaves a cluster on dstack as it is, and says what it costs and how to end it; one on this machine ends.
    """
    from cloudrl.cli.attach import say_other_port
    from cloudrl.providers.registry import ensure_name_free, provider

    where = provider(on)
    sets = of_data.described(data or [], described, local=where.nodes_are_here)
    values = {"name": name, "nodes": nodes, "gpu": options.gpus(gpu), "data": sets or None, "models": model}
    cluster = options.cluster({**shape, **values}, env=env)
    with nothing_started():
        plan = where.plan(cluster, dashboard_port=dashboard_port)
        if dry_run:
            _output.data((plan.priced() if plan.needs_price else plan).render())
            return
        ensure_name_free(name, on)
        plan = confirm_cost(plan, yes=yes)
    connection = start_and_watch(where, plan)
    _output.note(f"READY: {name} with {nodes} node{'s' * (nodes > 1)}, dashboard {connection.ray_url}")
    if dashboard_port is None:
        say_other_port(name, connection.ray_url)
    _output.hint(
        f"cloudrl submit {'grpo' if cluster.gpu else 'grpo-tiny'} --cluster {name}\ncloudrl down {name}"
    )
    _output.data(connection.ray_url)


def confirm_cost(plan: Plan, *, yes: bool) -> Plan:
    """Ask if it costs money; say what of the declaration has no effect there. Returns the plan that was shown."""
    from cloudrl.cli import _price

    for note in plan.notes:
        _output.note(f"note: {note}")
    return _price.ask(plan, yes=yes)


def start_and_watch(where: Provider, plan: Plan) -> Connection:
    """Start it while the nodes are shown; says so when it costs more than its agents count with."""
    from cloudrl.cli import _price
    from cloudrl.cli._status_table import watching

    with watching() as on_status:
        connection = where.up(plan, on_status=on_status)
    with cluster_goes_on(where, plan.name, f"cloudrl status {plan.name}"):
        if plan.cluster.max_cost is not None:
            with suppress(CloudrlError):  # a warning is not worth a cluster that is up
                _price.compare(where.status(plan.name))
    return connection
