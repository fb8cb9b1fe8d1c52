"""Fleets on a dstack server: plan, create, look, delete."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from cloudrl.errors import CapacityError, InputError
from cloudrl.providers.dstack.server import Server, parse, pick, wait_for
from cloudrl.providers.model import Notice, Offer, Price

_WAIT_S = 1200.0
"""A bare-metal host gets Docker and dstack's own programs installed; a cloud one boots first."""
_COMING = ("pending", "provisioning", "terminating")


@dataclass(frozen=True)
class Instance:
    """A machine of a fleet. `reason` says why it ended; `price` is in US dollars an hour."""

    name: str
    status: str
    hostname: str
    backend: str
    region: str
    resources: str
    price: float
    reason: str = ""
    spot: bool = False


@dataclass(frozen=True)
class FleetState:
    """One look at a fleet."""

    name: str
    status: str
    instances: tuple[Instance, ...]
    idle_duration_s: int | None
    """After which an idle machine is given back; None for never."""
    is_ssh: bool
    is_cluster: bool = True
    """Whether its machines are near each other; dstack runs clusters of several nodes nowhere else."""
    least: int = 0
    """So many rented machines are never given back."""
    spot_policy: str = "on-demand"
    """What it rents: spot, on-demand, or auto for either."""
    backends: tuple[str, ...] = ()
    """Whose machines it may rent; none for all."""

    @property
    def never_released(self) -> Notice | None:
        """That idle machines are paid for until somebody deletes the fleet; None where they are given back."""
        return None if self.is_ssh else never_released(self.name, self.idle_duration_s, self.least)

    @property
    def price(self) -> float:
        """US dollars an hour for the machines that are up or coming."""
        return sum(each.price for each in self.instances if each.status != "terminated")

    @property
    def is_settled(self) -> bool:
        """Whether no machine is on its way."""
        return not any(each.status in _COMING for each in self.instances)


@dataclass(frozen=True)
class FleetPlan:
    """What creating a fleet would do, as the server says.

    Attributes:
        text: the YAML that is sent.
        action: "create", "update" (in place), "recreate", or "nothing".
        nodes: how many machines are rented at once, before any run asks for them.
        price: of these machines; None for machines of one's own.
        current: the fleet of that name, if there is one.
    """

    text: str
    name: str
    action: str
    nodes: int
    price: Price | None = None
    current: FleetState | None = None
    answer: Any = field(default=None, repr=False)


def plan(server: Server, text: str) -> FleetPlan:
    """Ask the server what creating this fleet would do.

    Args:
        server: where.
        text: YAML of a dstack fleet; its `identity_file`s are read here, as `dstack apply` does.

    Raises:
        InputError: a key cannot be read, or the server refuses the fleet.
        ConnectionFailed: it does not answer.
    """
    from dstack._internal.core.models.fleets import FleetSpec
    from dstack._internal.core.models.profiles import Profile

    configuration = parse(text)
    _read_keys(configuration)
    spec = FleetSpec(configuration=configuration, profile=Profile())
    answer = server.call(server.api.fleets.get_plan, server.project, spec)
    current, nodes = answer.current_resource, configuration.nodes
    return FleetPlan(
        text=text,
        name=configuration.name,
        action=_action(answer),
        nodes=nodes.target if nodes is not None else len(configuration.ssh_config.hosts),
        price=_price(spec, answer) if configuration.ssh_config is None else None,
        current=_state(current) if current is not None else None,
        answer=answer,
    )


def _price(spec: Any, answer: Any) -> Price:
    """Of machines that are rented; without offers where none are going to be."""
    name, nodes = spec.configuration.name, spec.configuration.nodes.target
    kept = never_released(name, _idle_duration_s(spec), _least(spec))
    notices = (kept,) if kept is not None else ()
    if _action(answer) == "nothing":
        return Price(None, notices=notices)
    offers = offers_of(answer.offers)
    per_hour = nodes * offers[0].price if offers and nodes else None
    return Price(per_hour, offers, answer.total_offers, notices)


def apply(server: Server, planned: FleetPlan) -> None:
    """Do what was planned. Returns at once; `wait` waits for the machines.

    Raises:
        InputError: the server refuses, or the fleet has changed since the plan was made.
        ConnectionFailed: it does not answer.
    """
    if planned.action == "recreate":
        delete(server, [planned.name])
        wait_deleted(server, planned.name)
        planned = plan(server, planned.text)
    server.call(server.api.fleets.apply_plan, server.project, planned.answer)


def check(server: Server, planned: FleetPlan, *, replace: bool) -> None:
    """Refuse what cannot be had, and without `replace` what would take machines and their disks with it.

    Raises:
        CapacityError: no backend offers such a machine.
        InputError: the plan would delete a fleet first, and nobody has asked for that.
    """
    name = planned.name
    if planned.action == "recreate" and not replace:
        raise InputError(
            f"fleet {name} is there and cannot be changed in place: its machines and their disks would go",
            hint=f"See it: cloudrl fleet list\nDelete it: cloudrl fleet delete {name}",
        )
    if planned.price is not None and planned.price.total_offers == 0:
        raise CapacityError(
            f"fleet {name!r}: no backend of project {server.project!r} offers such a machine",
            hint="What there is: dstack offer --gpu 80GB..:8\nBackends are set up in ~/.dstack/server/config.yml",
        )


def wait(
    server: Server, name: str, *, on_look: Callable[[FleetState], None] = lambda _look: None, timeout_s: float = _WAIT_S
) -> FleetState:
    """Wait until no machine of the fleet is on its way.

    Raises:
        CapacityError: a machine could not be had, with the reason that dstack gives; the fleet stays.
        InputError: the fleet is gone.
    """
    hint = f"cloudrl fleet list\ncloudrl fleet delete {name}"

    def poll() -> FleetState | None:
        fleet = get(server, name)
        on_look(fleet)
        failed = [each for each in fleet.instances if each.status == "terminated"]
        if failed:
            which = failed[0].hostname or failed[0].name
            reason = failed[0].reason or "no reason given"
            raise CapacityError(f"fleet {name!r}: {which} ended: {reason}", hint=hint)
        return fleet if fleet.is_settled else None

    fleet = wait_for(poll, timeout_s=timeout_s)
    if fleet is None:
        minutes = f"{timeout_s / 60:.0f} minutes"
        raise CapacityError(f"fleet {name!r}: not all machines are up after {minutes}; dstack keeps trying", hint=hint)
    return fleet


def wait_deleted(server: Server, name: str, *, timeout_s: float = 600.0) -> None:
    """Wait until a fleet that is being deleted is gone; its machines are given back by then.

    Raises:
        InputError: it is still there after `timeout_s`.
    """
    if not wait_for(lambda: None if any(each.name == name for each in list_all(server)) else True, timeout_s=timeout_s):
        raise InputError(f"fleet {name!r} is still there after {timeout_s:.0f} s", hint="cloudrl fleet list")


def get(server: Server, name: str) -> FleetState:
    """One look at a fleet.

    Raises:
        InputError: there is none of that name.
    """
    return pick(server, "fleet", {each.name: each for each in list_all(server)}, name)


def list_all(server: Server) -> list[FleetState]:
    """All fleets of the project."""
    return [_state(each) for each in server.call(server.api.fleets.list, server.project)]


def delete(server: Server, names: list[str]) -> None:
    """Delete fleets and give their machines back; SSH hosts stay as they are. Does not wait.

    Raises:
        InputError: the server refuses, as a run uses one of them.
    """
    server.call(server.api.fleets.delete, server.project, names)


def _read_keys(configuration: Any) -> None:
    """Put the private keys where the server expects them; the YAML only names their files.

    The same as dstack's own command does (cli/services/configurators/fleet.py: _preprocess_spec).
    """
    ssh = configuration.ssh_config
    if ssh is None:
        return
    hosts = [host for host in ssh.hosts if not isinstance(host, str)]
    jumps = [each.proxy_jump for each in (ssh, *hosts) if each.proxy_jump is not None]
    for each in (ssh, *hosts, *jumps):
        if each.identity_file is not None:
            each.ssh_key = _read_key(each.identity_file)


def _read_key(path: str) -> Any:
    from dstack._internal.core.models.instances import SSHKey
    from dstack._internal.utils.ssh import resolve_ssh_key

    try:
        public, _, private, _ = resolve_ssh_key(path)
    except OSError as error:
        raise InputError(f"SSH key {path}: {error.strerror}", hint=f"ls {path}") from error
    except ValueError as error:
        raise InputError(f"SSH key {path}: {error}", hint=f"ssh-keygen -l -f {path}") from error
    if private is None:
        raise InputError(
            f"SSH key {path} is a public key; the private one is needed",
            hint=f"Its name is usually the same without .pub: {path.removesuffix('.pub')}",
        )
    return SSHKey(public=public, private=private)


def _action(answer: Any) -> str:
    if answer.current_resource is None:
        return "create"
    if answer.current_resource.spec == answer.get_effective_spec():
        return "nothing"
    return "update" if answer.action == "update" else "recreate"


def offers_of(answers: Iterable[Any]) -> tuple[Offer, ...]:
    """Offers of dstack as ours, cheapest first."""
    return tuple(sorted((_offer(each) for each in answers), key=lambda offer: offer.price))


def _offer(offer: Any) -> Offer:
    resources = offer.instance.resources
    return Offer(
        backend=offer.backend.value,
        region=offer.region,
        instance_type=offer.instance.name,
        resources=resources.pretty_format(),
        price=offer.price,
        spot=resources.spot,
    )


def _state(fleet: Any) -> FleetState:
    profile = fleet.spec.merged_profile
    return FleetState(
        name=fleet.name,
        status=fleet.status.value,
        instances=tuple(_instance(each) for each in fleet.instances),
        idle_duration_s=_idle_duration_s(fleet.spec),
        is_ssh=fleet.spec.configuration.ssh_config is not None,
        is_cluster=getattr(fleet.spec.configuration.placement, "value", None) == "cluster",
        least=_least(fleet.spec),
        # server/services/fleets.py: on-demand where nobody says
        spot_policy=getattr(profile.spot_policy, "value", None) or "on-demand",
        backends=tuple(each.value for each in profile.backends or ()),
    )


def never_released(fleet: str, idle_duration_s: int | None, least: int) -> Notice | None:
    """That rented machines are paid for until somebody deletes their fleet; None where idle ones are given back.

    Args:
        fleet: its name.
        idle_duration_s: None for `off`.
        least: the fleet's minimum.
    """
    if idle_duration_s is not None and not least:
        return None
    kept = f"it keeps {least} machine{'' if least == 1 else 's'} at any time (nodes: min {least})"
    reason = "its idle_duration is off" if idle_duration_s is None else kept
    return Notice(
        f"warning: fleet {fleet} never gives all of its machines back, and they cost money while idle: {reason}",
        f"cloudrl fleet delete {fleet}, when it is no longer needed",
    )


def _least(spec: Any) -> int:
    """Below this dstack gives no machine back (background/pipeline_tasks/instances/common.py)."""
    nodes = spec.configuration.nodes
    return 0 if nodes is None or getattr(spec, "autocreated", False) else int(nodes.min)


def _idle_duration_s(spec: Any) -> int | None:
    """Seconds; None for a negative one, which is `off`, and for machines of one's own.

    Where nobody says, dstack takes three days (core/models/profiles.py: DEFAULT_FLEET_TERMINATION_IDLE_TIME).
    """
    from dstack._internal.core.models.profiles import DEFAULT_FLEET_TERMINATION_IDLE_TIME

    seconds = spec.merged_profile.idle_duration
    if spec.configuration.ssh_config is not None or (seconds is not None and seconds < 0):
        return None
    return int(DEFAULT_FLEET_TERMINATION_IDLE_TIME if seconds is None else seconds)


def _instance(instance: Any) -> Instance:
    kind = instance.instance_type
    return Instance(
        name=instance.name,
        status="unreachable" if instance.unreachable else instance.status.value,
        hostname=instance.hostname or "",
        backend=instance.backend.value if instance.backend is not None else "",
        region=instance.region or "",
        resources=kind.resources.pretty_format() if kind is not None else "",
        spot=kind is not None and kind.resources.spot,
        price=instance.price or 0.0,
        reason=instance.termination_reason_message or instance.termination_reason or "",
    )
