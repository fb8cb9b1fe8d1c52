"""Fleets and network volumes: declare, create, list and delete them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from cloudrl.errors import InputError, Interrupted
from cloudrl.providers.dstack import fleet as dstack_fleet
from cloudrl.providers.dstack import volume as dstack_volume
from cloudrl.providers.dstack.machine_files import fleet_to_dstack, volume_to_dstack
from cloudrl.providers.dstack.machine_states import FleetPlan, FleetState, VolumeState, never_released
from cloudrl.providers.dstack.machines import DstackFleets, DstackVolumes
from cloudrl.providers.dstack.server import connect
from cloudrl.sdk.callbacks import Confirm, Notice, OnProgress, Question, silent, unattended
from cloudrl.sdk.costs import report_price
from cloudrl.units import dollars_text


class Fleet(dstack_fleet.Fleet):
    """A fleet as it is declared (docs/fields.md has the fields), with the verbs for it.

        fleet = cloudrl.Fleet(name="h100", nodes="0..3", gpu="H100:8", idle_duration="30m")
        print(fleet.to_dstack())

    `plan` shows what `create` would do.
    """

    def to_dstack(self) -> str:
        """The exact YAML of the dstack fleet."""
        return fleet_to_dstack(self)

    def plan(self, project: str | None = None) -> FleetPlan:
        """What `create` would do, with offers and prices; asks the dstack server.

        Raises:
            InputError: no server is configured, or it refuses the fleet.
            ConnectionFailed: it does not answer.
        """
        return DstackFleets(connect(project)).plan(self)

    def create(
        self,
        project: str | None = None,
        *,
        replace: bool | None = False,
        confirm: Confirm = unattended,
        on_progress: OnProgress = silent,
    ) -> FleetState:
        """Create it, or change it to what is declared here, and wait for the machines that come at once.

        Args:
            project: of the dstack server; None for the default one.
            replace: delete a fleet of this name that cannot be changed in place, with its machines and their disks;
                None leaves that to `confirm`.
            confirm: answers questions.
            on_progress: receives offers and prices, and when a machine changes its status.

        Raises:
            InputError: no server is configured, it refuses the fleet, one would have to be replaced, or the answer
                was no.
            CapacityError: there are no such machines, or one of them did not come up.
            ConnectionFailed: the server does not answer.
            Interrupted: Ctrl-C after it was sent; the message says what goes on and what it costs.
        """
        fleets, at = DstackFleets(connect(project)), _at(project)
        planned = fleets.plan(self)
        if planned.action == "nothing":
            on_progress(Notice(f"fleet {self.name} already exists as declared"))
        else:
            fleets.check(planned, replace=replace is not False)
        if planned.price is not None:
            report_price(planned.price, f"{planned.nodes} machines at once", on_progress)
        if planned.action == "nothing":
            return fleets.get(self.name)
        if not confirm(_question(planned, on_progress, replace=bool(replace))):
            raise InputError("nothing was created")
        try:
            state = fleets.create(planned, _machine_notices(on_progress))
        except KeyboardInterrupt:
            per_hour = planned.price.per_hour if planned.price is not None else None
            cost = f", with machines from {dollars_text(per_hour)}/h" if per_hour else ""
            raise Interrupted(
                f"interrupted; fleet {self.name} is still being created{cost}",
                hint=f"Look: cloudrl fleet list{at}\nDelete it: cloudrl fleet delete {self.name}{at}",
            ) from None
        up = len(state.instances)
        ready = f"{up} machine{'' if up == 1 else 's'} ready" if up else "machines come with the first run"
        next_commands = f"cloudrl fleet list{at}\ncloudrl fleet delete {self.name}{at}"
        on_progress(Notice(f"fleet {self.name}: {ready}", next_commands))
        return state


class NetworkVolume(dstack_volume.NetworkVolume):
    """A network volume as it is declared (docs/fields.md has the fields), with the verbs for it.

        print(cloudrl.NetworkVolume(name="ckpt-0", backend="aws", region="us-east-1", size="500GB").to_dstack())

    Once created, it costs money until it is deleted.
    """

    def to_dstack(self) -> str:
        """The exact YAML of the dstack volume."""
        return volume_to_dstack(self)

    def create(
        self, project: str | None = None, *, confirm: Confirm = unattended, on_progress: OnProgress = silent
    ) -> VolumeState:
        """Create it, and wait until it can be mounted.

        Raises:
            InputError: no server is configured, it refuses the volume, or the answer was no.
            CapacityError: the backend cannot make it.
            Interrupted: Ctrl-C; the volume is being made, and costs money.
        """
        volumes = DstackVolumes(connect(project))
        if not confirm(Question(f"Create volume {self.name}?")):
            raise InputError("nothing was created")
        try:
            state = volumes.create(self)
        except KeyboardInterrupt:
            at = _at(project)
            raise Interrupted(
                f"interrupted; volume {self.name} is still being created, and its disk costs money until you delete it",
                hint=f"Look: cloudrl volume list{at}\nDelete it: cloudrl volume delete {self.name}{at}",
            ) from None
        use = f"Mount it with `cloudrl up` or `cloudrl task create`: --volume {self.name}:/checkpoints"
        on_progress(Notice(f"volume {self.name}: {state.size} in {state.backend} {state.region}", use))
        return state


def list_fleets(project: str | None = None) -> Sequence[FleetState]:
    """All fleets of the project, with their machines."""
    return DstackFleets(connect(project)).list()


def list_volumes(project: str | None = None) -> Sequence[VolumeState]:
    """All network volumes of the project."""
    return DstackVolumes(connect(project)).list()


def delete_fleets(
    names: Sequence[str], project: str | None = None, *, confirm: Confirm = unattended, on_progress: OnProgress = silent
) -> None:
    """Delete fleets, give their machines back, and wait until they are gone.

    Raises:
        InputError: a name is unknown, a run uses one, the answer was no, or there was no terminal to ask on.
    """
    fleets = DstackFleets(connect(project))
    lost = _lost_with([fleets.get(name) for name in names], on_progress)
    if not confirm(Question(f"Delete fleet{'' if len(names) == 1 else 's'} {', '.join(names)}?{lost}", default=None)):
        raise InputError("nothing was deleted")
    fleets.delete(names)
    for name in names:
        fleets.wait_deleted(name)
        on_progress(Notice(f"deleted fleet {name}"))


def delete_volumes(
    names: Sequence[str], project: str | None = None, *, confirm: Confirm = unattended, on_progress: OnProgress = silent
) -> None:
    """Delete network volumes and all that is on them.

    Raises:
        InputError: a name is unknown, a run uses one, the answer was no, or there was no terminal to ask on.
    """
    volumes = DstackVolumes(connect(project))
    states = [volumes.get(name) for name in names]
    listed = ", ".join(f"{state.name} ({state.size} in {state.backend} {state.region})" for state in states)
    what = f"volume {listed} and everything on it" if len(names) == 1 else f"volumes {listed} and everything on them"
    if not confirm(Question(f"Delete {what}?", default=None)):
        raise InputError("nothing was deleted")
    volumes.delete(names)
    on_progress(Notice(f"deleted volume{'' if len(names) == 1 else 's'} {', '.join(names)}"))


def declared_notices(fleet: dstack_fleet.Fleet) -> list[Notice]:
    """What one that is only declared is going to cost for ever."""
    if fleet.node_range is None:
        return []
    never_idle = never_released(fleet.name, None if fleet.idle_duration == "off" else 0, fleet.node_range.min)
    return [never_idle] if never_idle is not None else []


def _question(planned: FleetPlan, on_progress: OnProgress, *, replace: bool) -> Question:
    name = planned.name
    if planned.action == "recreate":
        lost = _lost_with([planned.current] if planned.current else [], on_progress)
        text = f"Fleet {name} exists and cannot be changed in place. Delete and recreate it?{lost}"
        return Question(text, default=replace or None)
    return Question(f"Create fleet {name}?" if planned.action == "create" else f"Change fleet {name} in place?")


def _lost_with(states: Sequence[FleetState], on_progress: OnProgress) -> str:
    """What goes with fleets, as a sentence for the question; says what stays."""
    for state in states:
        if state.is_ssh:
            on_progress(Notice(f"{state.name}: data on the hosts' own disks is kept"))
    rented = [instance.name for state in states if not state.is_ssh for instance in state.instances]
    return f" {', '.join(rented)} and everything on their disks will be lost." if rented else ""


def _machine_notices(on_progress: OnProgress) -> Callable[[FleetState], None]:
    """Says when a machine changes its status."""
    fleet_of: dict[str, str] = {}

    def on_look(fleet: FleetState) -> None:
        for instance in fleet.instances:
            if fleet_of.get(instance.name) != instance.status:
                fleet_of[instance.name] = instance.status
                address = instance.hostname or instance.region or "no address yet"
                on_progress(Notice(f"{instance.name} ({address}): {instance.status}"))

    return on_look


def _at(project: str | None) -> str:
    """The option of commands that go to the same project."""
    return f" --project {shlex.quote(project)}" if project is not None else ""
