"""What every provider answers with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


UP_TIMEOUT_S = 86_400.0
"""For a cluster to come up: each of its phases has a deadline of its own, which its agents watch."""


class Plan(Protocol):
    """What `up` would do. Each provider has its own, with what its `up` needs."""

    @property
    def name(self) -> str:
        """The cluster's name."""

    @property
    def notes(self) -> Sequence[str]:
        """What the user should know before it starts, a sentence each."""

    def render(self) -> str:
        """The exact text, commands or requests, as `--dry-run` prints them."""


@dataclass(frozen=True)
class NodePaths:
    """Where nodes keep what jobs read and write.

    Attributes:
        checkpoints: absolute, on every node.
        data: below it, one folder a data set.
        secrets: below it, one file a job. `RUN-ID` in it is what the provider gives the cluster when it starts.
        ray: release of Ray on the nodes; None where nobody says it before they run.
    """

    checkpoints: str
    data: str
    secrets: str
    ray: str | None = None


@dataclass(frozen=True)
class CheckpointRetention:
    """What becomes of a cluster's checkpoints when it ends.

    Attributes:
        destroyed: whether they go with disks that are going to be destroyed.
        location: where they stay, or when and with what they go, in half a sentence.
    """

    destroyed: bool
    location: str


@dataclass(frozen=True)
class Status:
    """One look at a cluster.

    Attributes:
        phase: of rank 0 (see `cloudrl.protocol.phases`).
        reason: why it failed or ended, one line.
        nodes: one mapping a known node: rank, ip, phase, detail, seen_s_ago.
        ready_at: seconds since the epoch.
        previous_attempts: those of all nodes before the present one, oldest first, where a lost node makes the provider
            start the cluster again: attempt, submitted_at, ended_at, reason, nodes.
        dashboard_url: where Ray's dashboard is reached from here; None while no way to it is kept open.
        price_per_hour: US dollars for all machines that it has now; None where nobody says.
        cost: US dollars so far, those of earlier attempts included; None where nobody says.
        limits: when it ends by itself, as its agents see it (`cloudrl.node.head`): down_when_idle_s, idle_s, max_cost.
    """

    name: str
    provider: str
    phase: str
    nodes_wanted: int = 0
    reason: str = ""
    nodes: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    ready_at: float | None = None
    dashboard_url: str | None = None
    checkpoint_dir: str | None = None
    previous_attempts: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    price_per_hour: float | None = None
    cost: float | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        """Whether jobs can be submitted."""
        return self.phase == "ready"

    @property
    def has_failed(self) -> bool:
        """Whether it ended by itself; commands report that with exit code 4."""
        return self.phase == "failed"
