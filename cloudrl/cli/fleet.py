"""`cloudrl fleet`: the machines that dstack rents out, or reaches through SSH."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloudrl.cli import _output, _price
from cloudrl.cli._cluster_options import present, with_set
from cloudrl.cli._write_file import (
    DryRunOption,
    OutputOption,
    ProjectOption,
    YesOption,
    duration,
    money,
    write,
)
from cloudrl.errors import InputError, Interrupted

if TYPE_CHECKING:
    from cloudrl.providers.dstack.fleets import FleetPlan, FleetState
    from cloudrl.sdk import Fleet

app = typer.Typer(help="Fleets on dstack: machines for clusters.", no_args_is_help=True)

_SSH_OPTIONS = {
    "user": "--ssh-user", "identity_file": "--ssh-key", "port": "--ssh-port", "network": "--network",
}  # fmt: skip
_COLUMNS = ("fleet", "machine", "status", "where", "resources", "price/h", "given back")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the fleet.")] = "gpu-fleet",
    nodes: Annotated[
        str | None, typer.Option(help="At most this many machines, or a range such as 2..4.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="GPUs of each: H100:8, 80GB:8, amd:MI300X:8.")] = None,
    cpu: Annotated[str | None, typer.Option(help="CPU cores of each; 32.. is 32 or more.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory of each; 512GB.. is that or more.")] = None,
    disk: Annotated[str | None, typer.Option(help="Disk of each; 1TB.. is that or more.")] = None,
    now: Annotated[
        bool, typer.Option("--now", help="Rent the machines now, not with the first run.")
    ] = False,
    backend: Annotated[list[str] | None, typer.Option(help="aws, gcp, ...; may be repeated.")] = None,
    region: Annotated[list[str] | None, typer.Option(help="May be repeated.")] = None,
    instance_type: Annotated[list[str] | None, typer.Option(help="May be repeated.")] = None,
    spot_policy: Annotated[str | None, typer.Option(help="spot, on-demand or auto.")] = None,
    max_price: Annotated[float | None, typer.Option(help="US dollars an hour for each machine.")] = None,
    reservation: Annotated[str | None, typer.Option(help="A reservation of the cloud.")] = None,
    idle_duration: Annotated[
        str | None, typer.Option(help="Give an idle machine back after this: 30m.")
    ] = None,
    ssh_host: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="A machine of your own; may be repeated.")
    ] = None,
    ssh_user: Annotated[str | None, typer.Option(metavar="USER", help="Who logs in there.")] = None,
    ssh_key: Annotated[str | None, typer.Option(metavar="FILE", help="Private key for it.")] = None,
    ssh_port: Annotated[int | None, typer.Option(metavar="PORT", help="If it is not 22.")] = None,
    network: Annotated[
        str | None, typer.Option(metavar="A.B.C.D/N", help="Their network for each other.")
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=YAML", help="Any other field of cloudrl.Fleet."),
    ] = None,
    output: OutputOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    project: ProjectOption = None,
) -> None:
    """Create a fleet, or write its YAML with -o. A run rents its machines, unless you say --now or --nodes 2..4."""
    from cloudrl.render.fleet import fleet_to_dstack
    from cloudrl.sdk import Fleet

    of_dstack = present({
        "backends": backend, "regions": region, "instance_types": instance_type, "spot_policy": spot_policy,
        "max_price": max_price, "reservation": reservation,
    })  # fmt: skip
    given = present({
        "name": name, "nodes": _now(nodes) if now else nodes, "gpu": gpu, "cpu": cpu, "memory": memory, "disk": disk,
        "idle_duration": idle_duration, "dstack": of_dstack or None,
    })  # fmt: skip
    ssh = {
        "user": ssh_user,
        "port": ssh_port,
        "identity_file": ssh_key,
        "network": network,
        "hosts": ssh_host,
    }
    if any(value is not None for value in ssh.values()):
        given["ssh_config"] = _ssh(ssh)
    fleet = with_set(Fleet, given, field)
    text = fleet_to_dstack(fleet)
    if dry_run or output is not None:
        _warn(fleet)
    if dry_run:
        _output.data(text)
    elif output is not None:
        write(output, text, yes=yes)
        _output.hint(f"dstack apply -f {output}")
    else:
        make(text, yes=yes, project=project)
        _output.data(name)


@app.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    project: ProjectOption = None,
) -> None:
    """List fleets and their machines."""
    from cloudrl.providers.dstack import fleets
    from cloudrl.providers.dstack.server import connect

    states = fleets.list_all(connect(project))
    if as_json:
        _output.as_json([{**asdict(each), "price": each.price} for each in states])
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
    from cloudrl.providers.dstack import fleets
    from cloudrl.providers.dstack.server import connect

    server = connect(project)
    lost = _lost_with([fleets.get(server, name) for name in names])
    if not _output.confirm(f"Delete {', '.join(names)}?{lost}", yes=yes, unattended=False):
        raise InputError("nothing was deleted")
    fleets.delete(server, names)
    for name in names:
        fleets.wait_deleted(server, name)
        _output.note(f"fleet {name} is gone")


def _lost_with(looks: list[FleetState]) -> str:
    """What goes with fleets, as a sentence for the question."""
    machines = [each for look in looks if not look.is_ssh for each in look.instances]
    for look in looks:
        if look.is_ssh:
            _output.note(f"{look.name}: what lies on the hosts' own disks stays there")
    rented = [each.name for each in machines]
    return f" {', '.join(rented)} and all that lies on their disks will be gone." if rented else ""


def _warn(fleet: Fleet) -> None:
    from cloudrl.providers.dstack.fleets import never_released

    if fleet.node_range is not None:
        is_off = fleet.idle_duration == "off"
        _price.say(never_released(fleet.name, None if is_off else 0, fleet.node_range.min))


def _now(nodes: str | None) -> dict[str, int]:
    """As many machines at once as there may be."""
    count = 2 if nodes is None else int(nodes) if nodes.isdigit() else None
    if count is None:
        raise InputError(f"--now takes a plain --nodes, not {nodes!r}", hint="--now --nodes 2")
    return {"min": 0, "target": count, "max": count}


def _ssh(values: dict[str, Any]) -> dict[str, Any]:
    if not values["hosts"]:
        key = next(key for key, value in values.items() if value is not None)
        raise InputError(
            f"{_SSH_OPTIONS[key]} without a host", hint="--ssh-host HOST1 --ssh-host HOST2 --ssh-user ubuntu"
        )
    for key, example in (("user", "ubuntu"), ("identity_file", "~/.ssh/id_ed25519")):
        if values[key] is None:
            option = _SSH_OPTIONS[key]
            raise InputError(f"--ssh-host {values['hosts'][0]} needs {option}", hint=f"{option} {example}")
    return {key: value for key, value in values.items() if value is not None}


def make(text: str, *, yes: bool, project: str | None, replace: bool = True) -> None:
    """Show what a fleet's YAML would bring, ask, create it and wait for the machines that come at once.

    Raises:
        InputError: the user said no, or the server refuses it, or one of its name would have to go first and `replace`
            is False.
        CapacityError: there are no such machines.
        Interrupted: Ctrl-C after it was sent.
    """
    from cloudrl.providers.dstack import fleets
    from cloudrl.providers.dstack.server import connect

    server = connect(project)
    planned = fleets.plan(server, text)
    if planned.action == "nothing":
        _output.note(f"fleet {planned.name} is there, as declared")
        _price.say(planned.never_released)
        return
    if not replace:
        fleets.refuse_replacing(planned)
    fleets.check(server, planned)
    _say(planned)
    replaced = planned.current if planned.action == "recreate" else None
    lost = "" if replaced is None else _lost_with([replaced])
    question = {
        "create": f"Create fleet {planned.name}?",
        "update": f"Change fleet {planned.name} in place?",
        "recreate": f"Fleet {planned.name} is there and cannot be changed in place. Delete it and make it anew?{lost}",
    }[planned.action]
    if not _output.confirm(question, yes=yes, unattended=planned.action != "recreate"):
        raise InputError("nothing was created")
    try:
        fleets.apply(server, planned)
        look = fleets.wait(server, planned.name, on_look=_Machines())
    except KeyboardInterrupt:
        raise _interrupted(planned) from None
    up = len(look.instances)
    ready = f"{up} machine{'' if up == 1 else 's'} ready" if up else "machines come with the first run"
    _output.note(f"fleet {planned.name}: {ready}")
    _output.hint(f"cloudrl fleet list\ncloudrl fleet delete {planned.name}")


def _interrupted(planned: FleetPlan) -> Interrupted:
    """What stays when Ctrl-C comes while a fleet is being made: dstack goes on with it."""
    least = planned.nodes * planned.offers[0].price if planned.offers and not planned.is_ssh else 0.0
    cost = f", with machines from {money(least)}/h" if least else ""
    return Interrupted(
        f"interrupted; fleet {planned.name} is being made{cost}",
        hint=f"Look: cloudrl fleet list\nBe rid of it: cloudrl fleet delete {planned.name}",
    )


def _say(planned: FleetPlan) -> None:
    """Offers and price, before the question."""
    if planned.is_ssh:
        return
    _price.say_offers(planned.offers, planned.total_offers)
    if planned.offers and planned.nodes:
        least = planned.nodes * planned.offers[0].price
        _output.note(f"{planned.nodes} machines at once: from {money(least)}/h")
    _price.say(planned.never_released)


class _Machines:
    """Writes a line when a machine changes its status."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def __call__(self, look: FleetState) -> None:
        for each in look.instances:
            if self._last.get(each.name) != each.status:
                self._last[each.name] = each.status
                _output.note(
                    f"{each.name} ({each.hostname or each.region or 'no address yet'}): {each.status}"
                )


def _rows(fleet: FleetState) -> list[tuple[str, ...]]:
    """One row for each machine, or one for a fleet without any."""
    back = "yours" if fleet.is_ssh else duration(fleet.idle_duration_s)
    if not fleet.instances:
        return [(fleet.name, "", fleet.status, "", "", "", back)]
    return [
        (
            fleet.name, each.name, each.status, each.hostname or f"{each.backend} {each.region}",
            each.resources, money(each.price), back,
        )
        for each in fleet.instances
    ]  # fmt: skip
