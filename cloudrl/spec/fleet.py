"""Machines that clusters run on: rented by dstack from a cloud, or one's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import PlainValidator, model_validator

from cloudrl.errors import SpecError
from cloudrl.spec.base import FrozenDict, Spec
from cloudrl.spec.durations import Duration
from cloudrl.spec.fields import at_least, one_of, optional, spelled
from cloudrl.spec.gpu import Cpu, Gpu
from cloudrl.spec.names import resource_name
from cloudrl.spec.section import Section
from cloudrl.spec.sizes import count_range, size_range

if TYPE_CHECKING:
    from typing_extensions import Self

IDLE_DURATION = "1h"
_EXAMPLES = "For example 2 (at most two), '0..4', '2..2' (always two) or {'min': 0, 'target': 2, 'max': 4}"
_CLOUD_ONLY = ("nodes", "gpu", "cpu", "memory", "disk", "idle_duration")


_count = at_least(0, "a number of nodes", _EXAMPLES)


class NodeRange(Spec):
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

    min: Annotated[int, PlainValidator(_count)] = 0
    target: Annotated[int, PlainValidator(_count)] = 0
    max: Annotated[int | None, PlainValidator(optional(at_least(1, "a number of nodes", _EXAMPLES)))] = None

    @model_validator(mode="before")
    @classmethod
    def _rent_the_least(cls, values: dict[str, Any]) -> dict[str, Any]:
        """As dstack does: no target means `min`."""
        least = values.get("min")
        if values.get("target") is not None or not isinstance(least, int) or least < 0:
            return values
        return {**values, "target": least}

    @classmethod
    def parse(cls, value: object) -> NodeRange:
        """Read `2`, which is `0..2`; `0..4`, `2..`, or a mapping.

        A plain number is the most that there may be: none is rented before a run needs it, and none stays
        longer than `idle_duration`.

        Raises:
            SpecError: `value` is none of these, or the numbers contradict each other.
        """
        if isinstance(value, NodeRange):
            return value
        if isinstance(value, Mapping):
            return cls.load(value)
        try:
            given = count_range(value)
        except SpecError as wrong:
            raise SpecError(wrong.message, hint=_EXAMPLES) from None
        low = given.min or 0
        if ".." not in str(value):
            return cls(max=given.max)
        return cls(min=low, target=low, max=given.max)

    @property
    def is_fixed(self) -> bool:
        """Whether no machine is ever given back."""
        return self.min == self.max


def _idle_duration(value: object) -> str:
    return "off" if value in ("off", False) else str(Duration.parse(value))


class Fleet(Spec):
    """A fleet of dstack.

    Without `ssh_config` its machines are rented, by default when a run needs them and until they were idle for
    an hour; with it they are one's own. Names are dstack's, with the parts of `resources` beside the others.
    """

    sections: ClassVar[tuple[str, ...]] = ("dstack",)

    name: Annotated[str, PlainValidator(resource_name)] = "gpu-fleet"
    nodes: Annotated[NodeRange | None, PlainValidator(optional(NodeRange.parse))] = None
    """For rented machines; None means `0..`, as many as a run asks for. See `NodeRange`."""
    ssh_config: Section | None = None
    """One's own machines, as dstack has them: `{user: ubuntu, identity_file: ~/.ssh/id, hosts: [...]}`."""
    placement: Annotated[str | None, PlainValidator(optional(one_of(("any", "cluster"), "a placement")))] = (
        None
    )
    """None means `cluster` where there can be several machines: dstack runs multi-node tasks nowhere else."""
    gpu: Annotated[str | None, spelled(Gpu.parse)] = None
    """GPUs of each machine; None leaves them to the runs."""
    cpu: Annotated[str | None, spelled(Cpu.parse)] = None
    memory: Annotated[str | None, spelled(size_range)] = None
    disk: Annotated[str | None, spelled(size_range)] = None
    idle_duration: Annotated[str | None, spelled(_idle_duration)] = None
    """Rented machines are given back when idle for so long; None means `1h`, where dstack has three days."""
    dstack: Section = FrozenDict()
    """All else that dstack knows of a fleet: backends, regions, spot_policy, max_price, blocks, tags, ..."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.ssh_config is not None:
            for name in _CLOUD_ONLY:
                if getattr(self, name) is not None:
                    raise SpecError(
                        f"{name} is for rented machines and ssh_config for one's own",
                        hint=f"Leave {name} out: dstack finds out what the hosts have",
                    )
        elif self.nodes is not None and self.nodes.is_fixed and self.idle_duration is not None:
            raise SpecError(
                f"idle_duration {self.idle_duration!r} has no effect on a fixed number of nodes ({self.nodes.max})",
                hint=f"nodes: {{min: 0, target: {self.nodes.max}, max: {self.nodes.max}}} rents them at once and "
                "gives them back when idle",
            )
        return self

    @property
    def node_range(self) -> NodeRange | None:
        """How many machines are rented; None where they are one's own."""
        return None if self.ssh_config is not None else self.nodes or NodeRange()

    @property
    def idle_after(self) -> str | None:
        """The duration after which an idle machine is given back, or `off`; None where none ever is."""
        nodes = self.node_range
        return None if nodes is None or nodes.is_fixed else self.idle_duration or IDLE_DURATION

    @property
    def placed(self) -> str | None:
        """The placement that is asked for, or follows from the number of machines; None for a single one."""
        if self.placement is not None:
            return self.placement
        if self.ssh_config is not None:
            most: int | None = len(self.ssh_config.get("hosts", ()))
        else:
            most = self.nodes.max if self.nodes else None
        return None if most == 1 else "cluster"
