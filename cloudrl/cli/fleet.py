"""`cloudrl fleet`: the machines that dstack rents out, or reaches through SSH."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import (
    DryRunOption,
    FileOption,
    GpuOption,
    JsonOption,
    OutputOption,
    ProjectOption,
    SetOption,
    YesOption,
    declared_fields,
    given,
)
from cloudrl.errors import InputError

if TYPE_CHECKING:
    from cloudrl.providers.dstack.fleets import FleetState

app = typer.Typer(help="Fleets on dstack: machines for clusters.", no_args_is_help=True)

_COLUMNS = ("fleet", "machine", "status", "where", "resources", "price/h", "given back")


@app.command()
def create(
    name: Annotated[str | None, typer.Argument(help="Name of the fleet; gpu-fleet unless given.")] = None,
    nodes: Annotated[
        str | None,
        typer.Option(metavar="N|A..B", help="At most this many machines, or a range such as 2..4."),
    ] = None,
    gpu: GpuOption = None,
    now: Annotated[
        bool, typer.Option("--now", help="Rent the machines now, not with the first run.")
    ] = False,
    idle_duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="Give an idle machine back after this: 30m.")
    ] = None,
    ssh_host: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="A machine of your own; may be repeated.")
    ] = None,
    ssh_user: Annotated[str | None, typer.Option(metavar="USER", help="Who logs in there.")] = None,
    ssh_key: Annotated[str | None, typer.Option(metavar="FILE", help="Private key for it.")] = None,
    file: FileOption = None,
    field: SetOption = None,
    output: OutputOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    yes: YesOption = False,
    project: ProjectOption = None,
) -> None:
    """Create a fleet, or write its YAML with -o. A run rents its machines, unless you say --now or --nodes 2..4."""
    from cloudrl.cli._terminal import Terminal
    from cloudrl.cli._write_file import write
    from cloudrl.sdk import Fleet
    from cloudrl.sdk.fleet import declared_notices

    ssh = given(user=ssh_user, identity_file=ssh_key, hosts=ssh_host)
    values = given(
        name=name, nodes=nodes, gpu=gpu, idle_duration=idle_duration, ssh_config=_ssh(ssh) if ssh else None
    )
    fields = declared_fields(values, file, field)
    fleet = Fleet.load({**fields, "nodes": _now(fields.get("nodes"))} if now else fields)
    with Terminal(yes=yes) as terminal:
        if dry_run or output is not None:
            for notice in declared_notices(fleet):
                terminal(notice)
        if dry_run:
            _output.data(fleet.to_dstack())
        elif output is not None:
            write(output, fleet.to_dstack(), yes=yes)
            _output.hint(f"dstack apply -f {output}")
        else:
            state = fleet.create(project, replace=None, confirm=terminal.confirm, on_progress=terminal)
            _output.result(fleet.name, _fields(state), is_json=as_json)


@app.command("list")
def list_(as_json: JsonOption = False, project: ProjectOption = None) -> None:
    """List fleets and their machines."""
    from cloudrl.sdk.fleet import list_fleets

    states = list_fleets(project)
    if as_json:
        _output.as_json([_fields(each) for each in states])
    elif states:
        _output.table(_COLUMNS, [row for each in states for row in _rows(each)])
    else:
        _output.note("There is no fleet.")
        _output.hint("cloudrl fleet create --gpu 80GB:8 --nodes 2")


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The fleets.")],
    yes: YesOption = False,
    project: ProjectOption = None,
) -> None:
    """Delete fleets and give their machines back. What lies on the disks of rented machines is lost."""
    from cloudrl.cli._terminal import Terminal
    from cloudrl.sdk.fleet import delete_fleets

    with Terminal(yes=yes) as terminal:
        delete_fleets(names, project, confirm=terminal.confirm, on_progress=terminal)


def _now(nodes: object) -> dict[str, Any]:
    """As many machines at once as there may be; two where nobody says how many."""
    declared = nodes if isinstance(nodes, dict) else {"max": 2 if nodes is None else nodes}
    count = declared.get("max")
    if not str(count).isdigit():
        raise InputError(f"--now takes a plain number of nodes, not {nodes!r}", hint="--now --nodes 2")
    return {"min": 0, **declared, "target": int(str(count)), "max": int(str(count))}


def _ssh(values: dict[str, Any]) -> dict[str, Any]:
    """One's own machines, as dstack declares them."""
    for key, option in (("hosts", "--ssh-host"), ("user", "--ssh-user"), ("identity_file", "--ssh-key")):
        if key not in values:
            raise InputError(
                f"machines of your own need {option}",
                hint="--ssh-host HOST1 --ssh-host HOST2 --ssh-user ubuntu --ssh-key ~/.ssh/id_ed25519",
            )
    return values


def _fields(fleet: FleetState) -> dict[str, Any]:
    return {**asdict(fleet), "price": fleet.price}


def _rows(fleet: FleetState) -> list[tuple[str, ...]]:
    """One row for each machine, or one for a fleet without any."""
    from cloudrl.sdk.amounts import interval, money

    back = "yours" if fleet.is_ssh else interval(fleet.idle_duration_s)
    if not fleet.instances:
        return [(fleet.name, "", fleet.status, "", "", "", back)]
    return [
        (
            fleet.name, each.name, each.status, each.hostname or f"{each.backend} {each.region}",
            each.resources, money(each.price), back,
        )
        for each in fleet.instances
    ]  # fmt: skip
