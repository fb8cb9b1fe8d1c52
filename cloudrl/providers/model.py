"""What every provider answers with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Plan(Protocol):
    """What `up` would do. Each provider has its own, with what its `up` needs."""

    @property
    def name(self) -> str:
        """The cluster's name."""

    def render(self) -> str:
        """The exact text, commands or requests, as `--dry-run` prints them."""


@dataclass(frozen=True)
class Status:
    """One look at a cluster.

    Attributes:
        phase: of rank 0 (see `cloudrl.node.report.PHASES`), or "down".
        reason: why it failed or ended, one line.
        nodes: one mapping a known node: rank, ip, phase, detail, seen_s_ago.
        ready_at: seconds since the epoch.
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

    @property
    def is_ready(self) -> bool:
        """Whether jobs can be submitted."""
        return self.phase == "ready"

    @property
    def has_failed(self) -> bool:
        """Whether it ended by itself; commands report that with exit code 4."""
        return self.phase == "failed"
