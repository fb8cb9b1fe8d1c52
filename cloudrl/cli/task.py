"""`cloudrl task create`: a cluster as a file for `dstack apply`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from cloudrl.cli import _cluster_options as options
from cloudrl.cli import _output
from cloudrl.cli._option_groups import with_options
from cloudrl.cli._options import (
    ClusterOption,
    DryRunOption,
    EnvOption,
    JsonOption,
    OutputOption,
    YesOption,
    given,
    one_name,
)

app = typer.Typer(help="Tasks: a cluster as a file for `dstack apply`.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Without it Typer would make the only command the whole group."""


@app.command()
@with_options(cluster_options=options.cluster_options)
def create(
    name: options.NewNameArgument = None,
    cluster: ClusterOption = None,
    data: options.DataOption = None,
    model: options.ModelsOption = None,
    env: EnvOption = None,
    *,
    cluster_options: dict[str, Any],
    output: OutputOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    yes: YesOption = False,
) -> None:
    """Write CLUSTER.dstack.yml and the node agent beside it; `dstack apply -f` needs nothing else.

    Two nodes with 80GB:8 unless given.
    """
    from cloudrl.cli._write_file import write
    from cloudrl.render.agent import write_agent
    from cloudrl.sdk import Cluster

    named = given(name=one_name(name, cluster))
    wanted = {**cluster_options, **options.prepared(data, model, env), **named}
    declared = Cluster.load(options.cluster_fields(wanted, name=options.DEFAULT_NAME, nodes=2, gpu="80GB:8"))
    text = declared.to_dstack()
    if dry_run:
        _output.data(text)
        return
    path = output or Path(f"{declared.name}.dstack.yml")
    write(path, text, yes=yes)
    write_agent(path.parent)
    _output.hint(f"dstack apply -f {path}")
    _output.result(str(path), {"name": declared.name, "path": str(path)}, is_json=as_json)
