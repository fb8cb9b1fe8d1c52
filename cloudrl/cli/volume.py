"""`cloudrl volume`: disks that outlive the machines."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import (
    DryRunOption,
    FileOption,
    JsonOption,
    OutputOption,
    ProjectOption,
    SetOption,
    YesOption,
    declared_fields,
    declared_options,
    explicit,
    with_options,
)
from cloudrl.cli._terminal import Terminal
from cloudrl.options.machines import NetworkVolumeOptions

app = typer.Typer(help="Manage dstack network volumes, disks that outlive machines.", no_args_is_help=True)


@app.command()
@with_options(options=declared_options(NetworkVolumeOptions))
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Volume name.")],
    *,
    options: dict[str, Any],
    file: FileOption = None,
    field: SetOption = None,
    output: OutputOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    yes: YesOption = False,
    project: ProjectOption = None,
) -> None:
    """Create a network volume, or write its YAML with -o."""
    from cloudrl.sdk import NetworkVolume

    volume = NetworkVolume.load(declared_fields({**options, **explicit(name=name, file=file, set=field)}))
    with Terminal(yes=yes) as terminal:
        if not _output.print_or_write(volume.to_dstack(), output, dry_run=dry_run, confirm=terminal.confirm):
            state = volume.create(project, confirm=terminal.confirm, on_progress=terminal)
            _output.result(name, asdict(state), is_json=as_json)


@app.command("list")
def list_(as_json: JsonOption = False, project: ProjectOption = None) -> None:
    """List network volumes."""
    from cloudrl.sdk.machines import list_volumes
    from cloudrl.units import dollars_text

    states = list_volumes(project)
    rows = [
        (v.name, v.status, f"{v.backend} {v.region}", v.size, dollars_text(v.cost), ", ".join(v.used_by), v.reason)
        for v in states
    ]
    columns = ("volume", "status", "where", "size", "cost so far", "used by", "")
    fields = [asdict(state) for state in states]
    _output.listing(fields, columns, rows, is_json=as_json, empty="There is no network volume.")


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Volumes to delete.")],
    yes: YesOption = False,
    project: ProjectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete network volumes and everything on them."""
    from cloudrl.sdk.machines import delete_volumes

    with Terminal(yes=yes) as terminal:
        delete_volumes(names, project, confirm=terminal.confirm, on_progress=terminal)
    if as_json:
        _output.as_json({"deleted": names})
