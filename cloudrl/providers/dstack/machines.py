"""Fleets and network volumes on a dstack server."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from cloudrl.errors import CapacityError, InputError, WaitTimeout, did_you_mean
from cloudrl.providers.dstack.backends import SEE_CLOUDS, single_node_only
from cloudrl.providers.dstack.fleet import Fleet
from cloudrl.providers.dstack.machine_files import fleet_to_dstack, volume_to_dstack
from cloudrl.providers.dstack.machine_states import FleetPlan, FleetState, Instance, VolumeState, never_released
from cloudrl.providers.dstack.server import Server, parse, wait_for
from cloudrl.providers.dstack.volume import NetworkVolume
from cloudrl.providers.model import Offer, Price
from cloudrl.units import duration_text

S = TypeVar("S", FleetState, VolumeState)

_WAIT_S = 1200.0
"""A bare-metal host gets Docker and dstack's own programs installed; a cloud one boots first."""
_DELETE_S = _VOLUME_S = 600.0


@dataclass(frozen=True)
class _Named(Generic[S]):
    """What fleets and volumes of a project have in common; `kind` is their name in dstack's client and in commands."""

    server: Server
    kind: ClassVar[str]

    def list(self) -> Sequence[S]:
        """All of the project."""
        return [self._state(answer) for answer in self._call("list")]

    def get(self, name: str) -> S:
        """One look at one.

        Raises:
            InputError: the name is unknown.
        """
        by_name = {state.name: state for state in self.list()}
        if name not in by_name:
            raise InputError(
                f"project {self.server.project!r} has no {self.kind} {name!r}{did_you_mean(name, by_name)}",
                hint=f"cloudrl {self.kind} list",
            )
        return by_name[name]

    def delete(self, names: Sequence[str]) -> None:
        """Delete them, with rented machines and all that is on their disks; SSH hosts stay as they are. Does not wait.

        Raises:
            InputError: the server refuses, as a run uses one of them.
        """
        self._call("delete", list(names))

    def _call(self, verb: str, *args: Any) -> Any:
        api = getattr(self.server.api, f"{self.kind}s")
        return self.server.call(getattr(api, verb), self.server.project, *args)

    @staticmethod
    @abstractmethod
    def _state(answer: Any) -> S: ...


class DstackFleets(_Named[FleetState]):
    """Machines that clusters run on."""

    kind = "fleet"

    def plan(self, fleet: Fleet) -> FleetPlan:
        """Ask what creating this fleet would do. `identity_file`s are read here, as `dstack apply` does.

        Raises:
            InputError: a key cannot be read, or the server refuses the fleet.
            ConnectionFailed: it does not answer.
        """
        return self._plan(fleet_to_dstack(fleet))

    def _plan(self, text: str) -> FleetPlan:
        from cloudrl.providers.dstack.internals import FleetSpec, Profile

        configuration = parse(text)
        _read_keys(configuration)
        spec = FleetSpec(configuration=configuration, profile=Profile())
        answer = self._call("get_plan", spec)
        current, nodes = answer.current_resource, configuration.nodes
        return FleetPlan(
            text=text,
            name=configuration.name,
            action=_action(answer),
            nodes=nodes.target if nodes is not None else len(configuration.ssh_config.hosts),
            price=_price(spec, answer) if configuration.ssh_config is None else None,
            current=self._state(current) if current is not None else None,
            answer=answer,
            is_cluster=getattr(configuration.placement, "value", None) == "cluster",
        )

    def check(self, planned: FleetPlan, *, replace: bool) -> None:
        """Refuse what cannot be had, and without `replace` what would take machines and their disks with it.

        Raises:
            CapacityError: no backend offers such a machine.
            InputError: the plan would delete a fleet first, which was not asked for.
        """
        name = planned.name
        if planned.action == "recreate" and not replace:
            raise InputError(
                f"fleet {name} is there and cannot be changed in place: its machines and their disks would go",
                hint=f"See it: cloudrl fleet list\nDelete it: cloudrl fleet delete {name}",
            )
        if planned.price is not None and planned.price.total_offers == 0:
            message = f"fleet {name!r}: no backend of project {self.server.project!r} offers such a machine"
            backends = project_backends(self.server)
            if planned.is_cluster and backends and len(single_node_only(backends)) == len(backends):
                message += f"; {', '.join(backends)} runs clusters of one node only (placement: any)"
            raise CapacityError(
                message,
                hint="What there is: dstack offer --gpu 80GB..:8\nBackends are set up in ~/.dstack/server/config.yml\n"
                f"{SEE_CLOUDS}",
            )

    def create(self, planned: FleetPlan, on_look: Callable[[FleetState], None]) -> FleetState:
        """Do what was planned, and wait until no machine of the fleet is on its way.

        Raises:
            InputError: the server refuses, the fleet has changed since the plan was made, or it is gone.
            CapacityError: a machine could not be had, with the reason that is given; the fleet stays.
            ConnectionFailed: the server does not answer.
        """
        if planned.action == "recreate":
            self.delete([planned.name])
            self.wait_deleted(planned.name)
            planned = self._plan(planned.text)
        self._call("apply_plan", planned.answer)
        return self._wait(planned.name, on_look)

    def _wait(self, name: str, on_look: Callable[[FleetState], None]) -> FleetState:
        hint = f"cloudrl fleet list\ncloudrl fleet delete {name}"

        def poll() -> FleetState | None:
            fleet = self.get(name)
            on_look(fleet)
            failed = [instance for instance in fleet.instances if instance.status == "terminated"]
            if failed:
                which = failed[0].hostname or failed[0].name
                reason = failed[0].reason or "no reason given"
                raise CapacityError(f"fleet {name!r}: {which} ended: {reason}", hint=hint)
            return fleet if fleet.is_settled else None

        if (fleet := wait_for(poll, timeout_s=_WAIT_S)) is None:
            late = f"not all machines are up after {duration_text(_WAIT_S)}; dstack keeps trying"
            raise CapacityError(f"fleet {name!r}: {late}", hint=hint)
        return fleet

    def wait_deleted(self, name: str) -> None:
        """Wait until a fleet that is being deleted is gone; its machines are given back by then.

        Raises:
            WaitTimeout: it is still there after minutes.
        """
        if not wait_for(lambda: all(fleet.name != name for fleet in self.list()) or None, timeout_s=_DELETE_S):
            raise WaitTimeout(
                f"fleet {name!r} is still there after {duration_text(_DELETE_S)}", hint="cloudrl fleet list"
            )

    @staticmethod
    def _state(fleet: Any) -> FleetState:
        profile = fleet.spec.merged_profile
        return FleetState(
            name=fleet.name,
            status=fleet.status.value,
            instances=tuple(_instance(instance) for instance in fleet.instances),
            idle_duration_s=_idle_duration_s(fleet.spec),
            is_ssh=fleet.spec.configuration.ssh_config is not None,
            is_cluster=getattr(fleet.spec.configuration.placement, "value", None) == "cluster",
            least=_least(fleet.spec),
            most=getattr(fleet.spec.configuration.nodes, "max", None),
            # server/services/fleets.py: on-demand by default
            spot_policy=getattr(profile.spot_policy, "value", None) or "on-demand",
            backends=tuple(backend.value for backend in profile.backends or ()),
        )


class DstackVolumes(_Named[VolumeState]):
    """Disks that outlive the machines."""

    kind = "volume"

    def create(self, volume: NetworkVolume) -> VolumeState:
        """Create a volume, or register an existing disk, and wait until it can be used.

        Raises:
            InputError: there is one of that name, or the server refuses it.
            CapacityError: the backend could not make it, with its reason, or took longer than minutes.
            ConnectionFailed: the server does not answer.
        """
        name = volume.name
        if any(other.name == name for other in self.list()):
            raise InputError(
                f"project {self.server.project!r} has a volume {name!r}",
                hint=f"Look: cloudrl volume list\nDelete it: cloudrl volume delete {name}",
            )
        self._call("create", parse(volume_to_dstack(volume)))
        return self._wait(name)

    def _wait(self, name: str) -> VolumeState:
        hint = f"cloudrl volume delete {name}"

        def poll() -> VolumeState | None:
            volume = self.get(name)
            if volume.status == "failed":
                raise CapacityError(f"volume {name!r}: {volume.reason or 'failed'}", hint=hint)
            return volume if volume.status == "active" else None

        if (volume := wait_for(poll, timeout_s=_VOLUME_S)) is None:
            raise CapacityError(f"volume {name!r}: not there after {duration_text(_VOLUME_S)}", hint=hint)
        return volume

    @staticmethod
    def _state(volume: Any) -> VolumeState:
        configuration, data = volume.configuration, volume.provisioning_data
        size_gb = data.size_gb if data is not None else getattr(configuration, "size", None)
        return VolumeState(
            name=volume.name,
            status=volume.status.value,
            backend=configuration.backend.value,
            region=volume.get_region(),
            size=f"{size_gb:g}GB" if size_gb else "",
            cost=volume.cost,
            used_by=tuple(
                attachment.instance.name for attachment in volume.attachments or () if attachment.instance is not None
            ),
            reason=volume.status_message or "",
        )


def _price(spec: Any, answer: Any) -> Price:
    """Of machines that are rented; without offers where none are going to be."""
    name, nodes = spec.configuration.name, spec.configuration.nodes.target
    never_idle = never_released(name, _idle_duration_s(spec), _least(spec))
    notices = (never_idle,) if never_idle is not None else ()
    if _action(answer) == "nothing":
        return Price(None, notices=notices)
    offers = offers_of(answer.offers)
    per_hour = nodes * offers[0].price if offers and nodes else None
    return Price(per_hour, offers, answer.total_offers, notices)


def _read_keys(configuration: Any) -> None:
    """Put the private keys where the server expects them; the YAML only names their files.

    The same as dstack's own command does (cli/services/configurators/fleet.py: _preprocess_spec).
    """
    ssh = configuration.ssh_config
    if ssh is None:
        return
    hosts = [host for host in ssh.hosts if not isinstance(host, str)]
    jumps = [declared.proxy_jump for declared in (ssh, *hosts) if declared.proxy_jump is not None]
    for declared in (ssh, *hosts, *jumps):
        if declared.identity_file is not None:
            declared.ssh_key = _read_key(declared.identity_file)


def _read_key(path: str) -> Any:
    from cloudrl.providers.dstack.internals import SSHKey, resolve_ssh_key

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


_NOT_TO_BE_HAD = ("not_available", "no_quota", "no_balance")
"""dstack 0.22.5, core/models/instances.py: InstanceAvailability."""


def project_backends(server: Server) -> tuple[str, ...]:
    """The backends that are set up in the server's project; SSH hosts are not among them."""
    project = server.call(server.api.projects.get, server.project)
    return tuple(sorted(str(getattr(backend.name, "value", backend.name)) for backend in project.backends))


def offers_of(answers: Iterable[Any]) -> tuple[Offer, ...]:
    """Offers of dstack as ours, cheapest first; unavailable ones only if there are no others."""
    fleets = list(answers)
    usable = [fleet for fleet in fleets if fleet.availability.value not in _NOT_TO_BE_HAD]
    return tuple(sorted(map(_offer, usable or fleets), key=lambda offer: offer.price))


def _offer(offer: Any) -> Offer:
    resources = offer.instance.resources
    return Offer(
        backend=offer.backend.value,
        region=offer.region,
        instance_type=offer.instance.name,
        resources=resources.pretty_format(),
        price=offer.price,
        spot=resources.spot,
        gpu=_gpus(resources.gpus),
        memory_bytes=resources.memory_mib << 20,
    )


def _gpus(gpus: Sequence[Any]) -> str:
    """As a cluster asks for them: those of a machine are alike (dstack 0.22.5, core/models/instances.py: Gpu)."""
    return f"{gpus[0].name}:{round(gpus[0].memory_mib / 1024)}GB:{len(gpus)}" if gpus else ""


def _least(spec: Any) -> int:
    """Below this dstack gives no machine back (background/pipeline_tasks/instances/common.py)."""
    nodes = spec.configuration.nodes
    return 0 if nodes is None or getattr(spec, "autocreated", False) else int(nodes.min)


def _idle_duration_s(spec: Any) -> int | None:
    """Seconds; None for a negative one, which is `off`, and for machines of one's own.

    Without a value, dstack takes three days (core/models/profiles.py: DEFAULT_FLEET_TERMINATION_IDLE_TIME).
    """
    from cloudrl.providers.dstack.internals import DEFAULT_FLEET_TERMINATION_IDLE_TIME

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
        answer=instance,
    )
