"""`cloudrl task create`: a cluster as a file for `dstack apply`."""

from pathlib import Path
from typing import Any

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import DryRunOption, JsonOption, OutputOption, YesOption, new_cluster, with_options
from cloudrl.cli._terminal import Terminal

app = typer.Typer(help="Write a cluster as a dstack task file.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Without it Typer would make the only command the whole group."""


@app.command()
@with_options(fields=new_cluster)
def create(
    *,
    fields: dict[str, Any],
    output: OutputOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    yes: YesOption = False,
) -> None:
    """Write CLUSTER.dstack.yml and the node agent beside it. `dstack apply -f` needs nothing else.

    Defaults to two nodes with 80GB..:8.
    """
    from cloudrl.providers.registry import provider
    from cloudrl.sdk import Cluster

    cluster = Cluster.load({"name": provider("dstack").default_cluster, "nodes": 2, "gpu": "80GB..:8", **fields})
    _output.notes(cluster.plan("dstack").notes)
    path = output or Path(f"{cluster.name}.dstack.yml")
    if not (dry_run or yes):
        cluster.refuse_other_files(path.parent)
    _output.print_or_write(cluster.to_dstack(), path, dry_run=dry_run, confirm=Terminal(yes=yes).confirm)
    if not dry_run:
        cluster.write_files(path.parent)
        _output.result(str(path), {"name": cluster.name, "path": str(path)}, is_json=as_json)
