"""One look at fleets and network volumes, and what creating a fleet would do."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cloudrl.protocol.progress import Notice
from cloudrl.providers.model import Price
from cloudrl.units import dollars_text, duration_option

_OWN = ("remote", "kubernetes", "slurm")
"""Backends of machines that are there whether runs use them or not; `remote` is dstack's word for SSH hosts
(core/models/backends/base.py)."""
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
    answer: Any = field(default=None, repr=False, compare=False)
    """What the server says of it (dstack 0.22.5, core/models/instances.py: Instance)."""

    @property
    def is_own(self) -> bool:
        """Whether it is not rented for a run: a host of one's own, or a node of one's own cluster."""
        return self.backend in _OWN


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
    most: int | None = None
    """So many may be rented; None for any number."""
    spot_policy: str = "on-demand"
    """What it rents: spot, on-demand, or auto for either."""
    backends: tuple[str, ...] = ()
    """Whose machines it may rent; none for all."""

    @property
    def never_released(self) -> Notice | None:
        """That idle machines are paid for until somebody deletes the fleet; None where they are given back."""
        return None if self.is_ssh else never_released(self.name, self.idle_duration_s, self.least)

    @property
    def is_own(self) -> bool:
        """Whether its machines are there whether runs use them or not, and cost nothing more."""
        is_declared = bool(self.backends) and {*self.backends} <= {*_OWN}  # pods come and go with runs
        return self.is_ssh or is_declared or any(instance.is_own for instance in self.present)

    @property
    def present(self) -> tuple[Instance, ...]:
        """The machines that are up, coming or going."""
        return tuple(instance for instance in self.instances if instance.status != "terminated")

    @property
    def room(self) -> float:
        """So many machines more could be rented."""
        if self.is_ssh:
            return 0
        return math.inf if self.most is None else max(0, self.most - len(self.present))

    @property
    def price(self) -> float:
        """US dollars an hour for the machines that are up or coming."""
        return sum(instance.price for instance in self.present)

    @property
    def unused(self) -> tuple[Instance, ...]:
        """Machines that are paid for and that no run uses."""
        return tuple(each for each in self.instances if each.status == "idle" and each.price and not each.is_own)

    def goes_on_costing(self, machines: Sequence[Instance]) -> Notice | None:
        """What rented machines of it cost without a run, until when, and the command that ends it; None for nothing."""
        per_hour = sum(each.price for each in machines if not each.is_own)
        if not per_hour or self.is_ssh:
            return None
        count = f"{len(machines)} machine{'' if len(machines) == 1 else 's'}"
        if self.idle_duration_s is None or self.least:
            until = "until the fleet is deleted"
        else:
            most = per_hour * self.idle_duration_s / 3600
            until = f"until they were idle for {duration_option(self.idle_duration_s)}, {dollars_text(most)} at most"
        return Notice(
            f"{count} of fleet {self.name} go on costing {dollars_text(per_hour)}/h {until}",
            f"End that now: cloudrl fleet delete {self.name}",
        )

    @property
    def is_settled(self) -> bool:
        """Whether no machine is on its way."""
        return not any(instance.status in _COMING for instance in self.instances)


@dataclass(frozen=True)
class FleetPlan:
    """What creating a fleet would do, as the server says.

    Attributes:
        text: the YAML that is sent.
        action: "create", "update" (in place), "recreate", or "nothing".
        nodes: how many machines are rented at once, before any run asks for them.
        price: of these machines; None for machines of one's own.
        current: the fleet of that name, if there is one.
        is_cluster: whether its machines are near each other.
    """

    text: str
    name: str
    action: str
    nodes: int
    price: Price | None = None
    current: FleetState | None = None
    answer: Any = field(default=None, repr=False)
    is_cluster: bool = False


@dataclass(frozen=True)
class VolumeState:
    """One look at a network volume. `cost` is what it has cost so far, in US dollars."""

    name: str
    status: str
    backend: str
    region: str
    size: str
    cost: float
    used_by: tuple[str, ...]
    """Names of the machines that it is attached to."""
    reason: str = ""


def never_released(fleet: str, idle_duration_s: int | None, least: int) -> Notice | None:
    """That rented machines are paid for until somebody deletes their fleet; None where idle ones are given back.

    Args:
        fleet: its name.
        idle_duration_s: None for `off`.
        least: the fleet's minimum.
    """
    if idle_duration_s is not None and not least:
        return None
    minimum = f"it keeps {least} machine{'' if least == 1 else 's'} at any time (nodes: min {least})"
    reason = "its idle_duration is off" if idle_duration_s is None else minimum
    return Notice(
        f"warning: fleet {fleet} never gives all of its machines back, and they cost money while idle: {reason}",
        f"cloudrl fleet delete {fleet}, when it is no longer needed",
    )
