"""`cloudrl volume`: disks that outlive the machines."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

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
    given,
)

app = typer.Typer(help="Network volumes on dstack: disks that outlive the machines.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the volume.")],
    backend: Annotated[str | None, typer.Option(help="aws, gcp, runpod or kubernetes.")] = None,
    region: Annotated[str | None, typer.Option(help="Where the machines are going to be.")] = None,
    size: Annotated[str | None, typer.Option(help="For a new disk: 500GB.")] = None,
    volume_id: Annotated[str | None, typer.Option(help="The cloud's id of a disk that exists.")] = None,
    file: FileOption = None,
    field: SetOption = None,
    output: OutputOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    yes: YesOption = False,
    project: ProjectOption = None,
) -> None:
    """Create a network volume, or write its YAML with -o."""
    from cloudrl.cli._terminal import Terminal
    from cloudrl.cli._write_file import write
    from cloudrl.sdk import NetworkVolume

    values = given(name=name, backend=backend, region=region, size=size, volume_id=volume_id)
    volume = NetworkVolume.load(declared_fields(values, file, field))
    if dry_run:
        _output.data(volume.to_dstack())
    elif output is not None:
        write(output, volume.to_dstack(), yes=yes)
        _output.hint(f"dstack apply -f {output}")
    else:
        with Terminal(yes=yes) as terminal:
            state = volume.create(project, confirm=terminal.confirm, on_progress=terminal)
        _output.result(name, asdict(state), is_json=as_json)


@app.command("list")
def list_(as_json: JsonOption = False, project: ProjectOption = None) -> None:
    """List network volumes."""
    from cloudrl.sdk.amounts import money
    from cloudrl.sdk.volume import list_volumes

    states = list_volumes(project)
    if as_json:
        _output.as_json([asdict(each) for each in states])
        return
    if not states:
        _output.note("There is no network volume.")
        return
    columns = ("volume", "status", "where", "size", "cost so far", "used by", "")
    rows = [
        (v.name, v.status, f"{v.backend} {v.region}", v.size, money(v.cost), ", ".join(v.used_by), v.reason)
        for v in states
    ]
    _output.table(columns, rows)


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The volumes.")],
    yes: YesOption = False,
    project: ProjectOption = None,
) -> None:
    """Delete network volumes and all that lies on them."""
    from cloudrl.cli._terminal import Terminal
    from cloudrl.sdk.volume import delete_volumes

    with Terminal(yes=yes) as terminal:
        delete_volumes(names, project, confirm=terminal.confirm, on_progress=terminal)
