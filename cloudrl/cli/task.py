"""`cloudrl task create`: a cluster as a file for `dstack apply`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from cloudrl.cli import _cluster_options as options
from cloudrl.cli import _data_options as of_data
from cloudrl.cli import _output
from cloudrl.cli._option_groups import with_options
from cloudrl.cli._write_file import DryRunOption, OutputOption, YesOption, write

app = typer.Typer(help="Tasks: a cluster as a file for `dstack apply`.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Without it Typer would make the only command the whole group."""


@app.command()
@with_options(described=of_data.fields, shape=options.shape)
def create(
    name: options.NameArgument = "ray-cluster",
    nodes: options.NodesOption = 2,
    gpu: options.GpuOption = "80GB:8",
    data: options.DataOption = None,
    model: options.ModelOption = None,
    env: options.EnvOption = None,
    *,
    described: dict[str, Any],
    shape: dict[str, Any],
    output: OutputOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Write NAME.dstack.yml and the node agent beside it; `dstack apply -f` needs nothing else."""
    from cloudrl.render.agent import write_agent
    from cloudrl.render.dstack import to_dstack

    sets = of_data.described(data or [], described, local=False)
    values = {"name": name, "nodes": nodes, "gpu": options.gpus(gpu), "data": sets or None, "models": model}
    text = to_dstack(options.cluster({**shape, **values}, env=env))
    if dry_run:
        _output.data(text)
        return
    path = output or Path(f"{name}.dstack.yml")
    write(path, text, yes=yes)
    write_agent(path.parent)
    _output.hint(f"dstack apply -f {path}")
    _output.data(str(path))
