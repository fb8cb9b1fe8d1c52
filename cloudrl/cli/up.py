"""`cloudrl up`: start a cluster."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cloudrl.cli import _cluster_options as options
from cloudrl.cli import _output
from cloudrl.cli._option_groups import with_options
from cloudrl.cli._options import (
    ClusterOption,
    DryRunOption,
    EnvOption,
    JsonOption,
    OnOption,
    YesOption,
    given,
    one_name,
)


@with_options(cluster_options=options.cluster_options)
def up(
    name: options.NewNameArgument = None,
    cluster: ClusterOption = None,
    on: OnOption = "local",
    data: options.DataOption = None,
    model: options.ModelsOption = None,
    env: EnvOption = None,
    *,
    cluster_options: dict[str, Any],
    dashboard_port: Annotated[int | None, typer.Option(help="For Ray's dashboard; 8265 if free.")] = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    yes: YesOption = False,
) -> None:
    """Start a cluster and wait until it is READY. It goes on when this command ends.

    Ctrl-C leaves a cluster on dstack as it is, and says what it costs and how to end it; one on this machine ends.
    """
    from cloudrl.cli._terminal import Terminal
    from cloudrl.providers.registry import provider
    from cloudrl.sdk import Cluster

    on = on or "local"
    named = given(name=one_name(name, cluster))
    fields = options.cluster_fields(
        {**cluster_options, **options.prepared(data, model, env), **named}, name=options.DEFAULT_NAME
    )
    declared = Cluster.load(options.local_paths(fields) if provider(on).nodes_are_here else fields)
    if dry_run:
        _output.data(declared.plan(on, dashboard_port=dashboard_port).preview())
        return
    with Terminal(yes=yes) as terminal:
        running = declared.up(
            on, dashboard_port=dashboard_port, confirm=terminal.confirm, on_progress=terminal
        )
    recipe = "grpo" if declared.gpu else "grpo-tiny"
    _output.hint(f"cloudrl submit {recipe} --cluster {declared.name}\ncloudrl down {declared.name}")
    url = running.connection.ray_url
    _output.result(url, {"name": declared.name, "on": on, "dashboard_url": url}, is_json=as_json)
