"""`cloudrl fleet`: the machines that dstack rents out, or reaches through SSH."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

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
from cloudrl.errors import InputError
from cloudrl.options.declaration import declared
from cloudrl.options.machines import FleetOptions, SshOptions

if TYPE_CHECKING:
    from cloudrl.providers.dstack.machine_states import FleetState

app = typer.Typer(help="Manage dstack fleets, the machines for clusters.", no_args_is_help=True)


@app.command()
@with_options(options=declared_options(FleetOptions), ssh=declared_options(SshOptions))
def create(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Fleet name. Default: gpu-fleet.")] = None,
    *,
    options: dict[str, Any],
    now: Annotated[bool, typer.Option("--now", help="Rent the machines now instead of with the first run.")] = False,
    ssh: dict[str, Any],
    file: FileOption = None,
    field: SetOption = None,
    output: OutputOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    yes: YesOption = False,
    project: ProjectOption = None,
) -> None:
    """Create a fleet, or write its YAML with -o. Machines are rented by the first run unless --now or --nodes 2..4."""
    from cloudrl.sdk import Fleet
    from cloudrl.sdk.machines import declared_notices

    for entry in declared(SshOptions):
        if ssh and entry.field not in ssh:
            raise InputError(
                f"machines of your own need {entry.names[0]}",
                hint="--ssh-host HOST1 --ssh-host HOST2 --ssh-user ubuntu --ssh-key ~/.ssh/id_ed25519",
            )
    fields = {**options, **explicit(name=name, ssh_config=ssh or None, file=file, set=field)}
    fleet = Fleet.load(declared_fields(fields))
    fleet = fleet.rented_now() if now else fleet
    with Terminal(yes=yes) as terminal:
        if dry_run or output is not None:
            for notice in declared_notices(fleet):
                terminal(notice)
        if not _output.print_or_write(fleet.to_dstack(), output, dry_run=dry_run, confirm=terminal.confirm):
            state = fleet.create(project, replace=None, confirm=terminal.confirm, on_progress=terminal)
            _output.result(fleet.name, _fields(state), is_json=as_json)


@app.command("list")
def list_(as_json: JsonOption = False, project: ProjectOption = None) -> None:
    """List fleets and their machines."""
    from cloudrl.sdk.machines import list_fleets

    states = list_fleets(project)
    _output.listing(
        [_fields(state) for state in states],
        ("fleet", "machine", "status", "where", "resources", "price/h", "released after"),
        [row for state in states for row in _rows(state)],
        is_json=as_json,
        empty="There is no fleet.",
        next_command="cloudrl fleet create --gpu 80GB..:8 --nodes 0..3",
    )


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Fleets to delete.")],
    yes: YesOption = False,
    project: ProjectOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete fleets and release their machines. Everything on the disks of rented machines is lost."""
    from cloudrl.sdk.machines import delete_fleets

    with Terminal(yes=yes) as terminal:
        delete_fleets(names, project, confirm=terminal.confirm, on_progress=terminal)
    if as_json:
        _output.as_json({"deleted": names})


def _fields(fleet: FleetState) -> dict[str, Any]:
    return {**asdict(fleet), "price": fleet.price}


def _rows(fleet: FleetState) -> list[tuple[str, ...]]:
    """One row for each machine, or one for a fleet without any."""
    from cloudrl.units import dollars_text, duration_option

    idle_s = fleet.idle_duration_s
    back = "yours" if fleet.is_ssh else "never" if idle_s is None else duration_option(idle_s)
    if not fleet.instances:
        return [(fleet.name, "", fleet.status, "", "", "", back)]
    return [
        (
            fleet.name, instance.name, instance.status, instance.hostname or f"{instance.backend} {instance.region}",
            instance.resources, dollars_text(instance.price), back,
        )
        for instance in fleet.instances
    ]  # fmt: skip
