"""Machines that clusters run on: rented by dstack from a cloud, or one's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import PlainValidator, model_validator

from cloudrl.errors import CapacityError, SpecError
from cloudrl.spec import Cluster
from cloudrl.spec.base import FrozenDict, Spec
from cloudrl.spec.fields import PlainText, Section, frozen, optional, plain_text
from cloudrl.spec.gpu import Gpu
from cloudrl.spec.names import resource_name
from cloudrl.spec.quoting import quoted
from cloudrl.spec.sizes import CountRange, duration_with_unit, size_range

if TYPE_CHECKING:
    from typing_extensions import Self

IDLE_DURATION = "1h"
IDLE_AFTER_RUN = "5m"
"""Of a fleet that is made for one run: a retry of dstack's comes within minutes, and another job needs no longer."""
_DISK_GB_OF_GPU, _LEAST_DISK_GB = 250, 500
"""2 TB for eight GPUs, enough for a 32B model on two nodes. dstack's own default is 100 GB, and of disks that can be of
any size it rents the smallest (0.22.5, core/models/resources.py: DEFAULT_DISK)."""


def _idle_duration(value: object) -> str:
    """As text, of which dstack knows more forms, such as `off`; a bare number may be meant as minutes."""
    text = plain_text(value)
    return duration_with_unit(text) if text.isdecimal() and int(text[:18]) else text


def _size_range(value: object) -> str:
    return size_range(plain_text(value))


@dataclass(frozen=True)
class NodeRange:
    """How many machines a cloud fleet has.

    What dstack 0.22.5 does with the three numbers:

    - `target` machines are rented when the fleet is created (server/services/fleets.py,
      _get_fleet_nodes_to_provision), and never again.
    - Fewer than `min` are filled up at any time (background/pipeline_tasks/fleets.py,
      _maintain_fleet_nodes_in_min_max_range), and an idle machine is given back after `idle_duration` only
      while there are more than `min` (.../instances/common.py, can_terminate_fleet_instances_on_idle_duration).
    - A run that needs more than there are rents them, up to `max`; None is no limit.

    So dstack's plain `nodes: 2`, which is min 2, target 2, max 2, is paid for until somebody deletes the fleet.
    """

    min: int = 0
    target: int = 0
    max: int | None = None

    @classmethod
    def parse(cls, value: object) -> NodeRange:
        """Read `2`, which is `0..2`; `0..4`, `2..`, or dstack's mapping, in which no target means `min`.

        A plain number is the most that there may be: none is rented before a run needs it, and none stays
        longer than `idle_duration`.

        Raises:
            SpecError: `value` has another type.
        """
        if isinstance(value, Mapping):
            least = value.get("min", 0)
            return cls(least, value.get("target", least), value.get("max"))
        limits = CountRange.parse(value)
        if limits.max == 0:
            raise SpecError(f"{quoted(value)} is not a machine at all", hint="For example 2 (at most two), or '2..4'")
        if ".." not in str(value):
            return cls(max=limits.max)
        return cls(limits.min or 0, limits.min or 0, limits.max)

    @property
    def is_fixed(self) -> bool:
        """Whether no machine is ever given back."""
        return self.min == self.max


def _nodes(value: object) -> Any:
    if isinstance(value, Mapping):
        return frozen(value)
    NodeRange.parse(value)
    return value


class Fleet(Spec):
    """A fleet of dstack, whose own models check it when it is rendered.

    Without `ssh_config` its machines are rented, by default when a run needs them and until they were idle for
    an hour; with it they are one's own. Names are dstack's, with the parts of `resources` beside the others.
    """

    sections: ClassVar[tuple[str, ...]] = ("dstack",)

    name: Annotated[str, PlainValidator(resource_name)] = "gpu-fleet"
    nodes: Annotated[int | str | Mapping[str, Any] | None, PlainValidator(optional(_nodes))] = None
    """Rented machines: `2` (at most two), `0..4`, or `{min: 0, target: 2, max: 4}`: `target` machines are rented at
    once, `min` are never released. Default: as many as runs ask for."""
    ssh_config: Section | None = None
    """Your own machines, as dstack has them: `{user: ubuntu, identity_file: ~/.ssh/id_ed25519, hosts: [a, b]}`."""
    placement: PlainText = None
    """`cluster` or `any`. Default: `cluster` if there can be several machines, as dstack runs multi-node tasks nowhere
    else."""
    gpu: PlainText = None
    """GPUs of each machine. Default: what runs ask for."""
    cpu: PlainText = None
    """CPUs of each machine."""
    memory: Annotated[str | None, PlainValidator(optional(_size_range))] = None
    """Memory of each machine."""
    disk: Annotated[str | None, PlainValidator(optional(_size_range))] = None
    """Disk of each machine. Default: 250 GB for each GPU, at least 500 GB; without GPUs what runs ask for."""
    idle_duration: Annotated[str | None, PlainValidator(optional(_idle_duration))] = None
    """A rented machine is released after it was idle this long. Default: `1h`, where dstack has three days."""
    dstack: Section = FrozenDict()
    """All other fields of a dstack [fleet](https://dstack.ai/docs/reference/dstack.yml/fleet): `backends`, `regions`,
    `spot_policy`, `max_price`, `retry`, `blocks`, `tags`, ..."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        for name in ("nodes", "gpu", "cpu", "memory", "disk", "idle_duration"):
            if self.ssh_config is not None and getattr(self, name) is not None:
                raise SpecError(
                    f"{name} is for rented machines and ssh_config for one's own",
                    hint=f"Leave {name} out: dstack finds out what the hosts have",
                )
        nodes = self.node_range
        if nodes is not None and nodes.is_fixed and self.idle_duration is not None:
            raise SpecError(
                f"idle_duration {quoted(self.idle_duration)} has no effect on a fixed number of nodes ({nodes.max})",
                hint=f"nodes: {{min: 0, target: {nodes.max}, max: {nodes.max}}} rents them at once and gives them "
                "back when idle",
            )
        return self

    def rented_now(self) -> Self:
        """The same with all of its machines rented when it is created, two if it does not say how many.

        Idle ones are given back as before.

        Raises:
            SpecError: The number of machines is open, or a range.
        """
        nodes = self.nodes if isinstance(self.nodes, Mapping) else {"max": 2 if self.nodes is None else self.nodes}
        count = str(nodes.get("max"))
        if not count.isdigit():
            raise SpecError(f"--now needs a single number of nodes, not {quoted(self.nodes)}", hint="--now --nodes 2")
        return self.replace(nodes={"min": 0, **nodes, "target": int(count), "max": int(count)})

    @property
    def node_range(self) -> NodeRange | None:
        """How many machines are rented; None where they are one's own."""
        if self.ssh_config is not None:
            return None
        return NodeRange() if self.nodes is None else NodeRange.parse(self.nodes)

    @property
    def disk_asked(self) -> str | None:
        """The disk that is asked for, or that GPU machines need: tasks ask for none, as hosts have what they have."""
        if self.disk is not None or self.node_range is None or str(self.gpu or 0) == "0":
            return self.disk
        try:
            gpus = Gpu.exact_count(self.gpu) or 1
        except SpecError:  # a form that only dstack knows
            gpus = 1
        gigabytes = max(_LEAST_DISK_GB, _DISK_GB_OF_GPU * gpus)
        return f"{gigabytes // 1000}TB.." if gigabytes % 1000 == 0 else f"{gigabytes}GB.."

    @property
    def idle_after(self) -> str | None:
        """The duration after which an idle machine is given back, or `off`; None where none ever is."""
        nodes = self.node_range
        return None if nodes is None or nodes.is_fixed else self.idle_duration or IDLE_DURATION

    @property
    def placed(self) -> str | None:
        """The placement that is asked for, or follows from the number of machines; None for a single one."""
        nodes = self.node_range
        most = nodes.max if nodes else len((self.ssh_config or {}).get("hosts", ()))
        return self.placement or (None if most == 1 else "cluster")


class NoFleet(CapacityError):
    """There is no machine for a cluster; it would fit on a new fleet such as `fleet`, as `cluster`, which names it.

    `own_fleets` are those of the user's own machines that do not fit: renting others takes an answer.
    """

    def __init__(
        self, message: str, *, hint: str, fleet: Fleet, cluster: Cluster, own_fleets: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.fleet, self.cluster, self.own_fleets = fleet, cluster, own_fleets
