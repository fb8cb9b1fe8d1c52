"""`cloudrl volume`: disks that outlive the machines."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Annotated

import typer

from cloudrl.cli import _output
from cloudrl.cli._cluster_options import present, with_set
from cloudrl.cli._write_file import DryRunOption, OutputOption, ProjectOption, YesOption, money, write
from cloudrl.errors import InputError, Interrupted

app = typer.Typer(help="Network volumes on dstack: disks that outlive the machines.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the volume.")],
    backend: Annotated[str, typer.Option(help="aws, gcp, runpod or kubernetes.")],
    region: Annotated[str | None, typer.Option(help="Where the machines are going to be.")] = None,
    size: Annotated[str | None, typer.Option(help="For a new disk: 500GB.")] = None,
    volume_id: Annotated[str | None, typer.Option(help="The cloud's id of a disk that exists.")] = None,
    field: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=YAML", help="Any other field of cloudrl.NetworkVolume."),
    ] = None,
    output: OutputOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    project: ProjectOption = None,
) -> None:
    """Create a network volume, or write its YAML with -o."""
    from cloudrl.render.volume import volume_to_dstack
    from cloudrl.spec import NetworkVolume

    values = {"name": name, "backend": backend, "region": region, "size": size, "volume_id": volume_id}
    text = volume_to_dstack(with_set(NetworkVolume, present(values), field))
    if dry_run:
        _output.data(text)
    elif output is not None:
        write(output, text, yes=yes)
        _output.hint(f"dstack apply -f {output}")
    else:
        _create(name, text, yes=yes, project=project)


@app.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    project: ProjectOption = None,
) -> None:
    """List network volumes."""
    from cloudrl.providers.dstack import volumes
    from cloudrl.providers.dstack.server import connect

    states = volumes.list_all(connect(project))
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
    from cloudrl.providers.dstack import volumes
    from cloudrl.providers.dstack.server import connect

    server = connect(project)
    for name in names:
        volumes.get(server, name)
    if not _output.confirm(f"Delete {', '.join(names)} and all that lies there?", yes=yes, unattended=False):
        raise InputError("nothing was deleted")
    volumes.delete(server, names)
    _output.note(f"deleted {', '.join(names)}")


def _create(name: str, text: str, *, yes: bool, project: str | None) -> None:
    from cloudrl.providers.dstack import volumes
    from cloudrl.providers.dstack.server import connect

    server = connect(project)
    if not _output.confirm(f"Create volume {name}?", yes=yes):
        raise InputError("nothing was created")
    try:
        volumes.create(server, text)
        look = volumes.wait(server, name)
    except KeyboardInterrupt:
        raise _interrupted(name, project) from None
    _output.note(f"volume {name}: {look.size} in {look.backend} {look.region}")
    _output.hint(f"--volume {name}:/checkpoints with `cloudrl task create` or `cloudrl up`")
    _output.data(name)


def _interrupted(name: str, project: str | None) -> Interrupted:
    """What stays when Ctrl-C comes while a volume is being made: dstack goes on with it."""
    where = f" --project {shlex.quote(project)}" if project is not None else ""
    return Interrupted(
        f"interrupted; volume {name} is being made, and its disk costs money until it is deleted",
        hint=f"Look: cloudrl volume list{where}\nBe rid of it: cloudrl volume delete {name}{where}",
    )
