"""Whether the saves of a job have room on the disks of a cluster that is up. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cloudrl.protocol.facts import ClusterFacts
from cloudrl.units import size_text
from cloudrl.verl.kept_saves import ROTATION
from cloudrl.verl.keys import LOCAL_DIR
from cloudrl.verl.memory.amount import GIB
from cloudrl.verl.memory.host import DISK
from cloudrl.verl.memory.verdict import Estimate
from cloudrl.verl.setting import Setting


def save_bytes(estimate: Estimate, nodes: int) -> int:
    """What one save takes on each of the nodes that keep their own parts; 0 if the estimate has none."""
    needs = (phase.need.likely for phase in estimate.phases if phase.group == DISK)
    return int(next(needs, 0.0) * GIB / nodes)


def saves_there(facts: ClusterFacts, setting: Setting) -> bool:
    """Whether a job saves where its cluster keeps checkpoints, whose disk is known."""
    return f"{setting.get(LOCAL_DIR)}/".startswith(f"{facts.checkpoint_dir.rstrip('/')}/")


@dataclass(frozen=True)
class SaveRoom:
    """The free bytes of a cluster beside the saves of a job.

    Attributes:
        facts: of the cluster.
        free_bytes: where the job saves, on the fullest node; 0 if unknown.
        save_bytes: of one save, on each node that keeps its own part.
        nodes: that keep their own parts; 1 for one folder that all share.
        at_once: saves that a disk has to hold; None if unknown.
        kept_keys: that limit them.
    """

    facts: ClusterFacts
    free_bytes: int
    save_bytes: int
    nodes: int
    at_once: int | None
    kept_keys: tuple[str, ...]

    @property
    def held(self) -> int:
        """Saves that there is room for."""
        return self.free_bytes // max(1, self.save_bytes)

    @property
    def is_short(self) -> bool:
        """Whether the first or the second save fails for sure."""
        needed = 1 if self.at_once is None else min(self.at_once, ROTATION)
        return self.free_bytes > 0 and self.held < needed

    @property
    def reason(self) -> str:
        """Why one fails, with both numbers."""
        there = f"{self.facts.checkpoint_dir} of cluster {self.facts.name!r} has room for {size_text(self.free_bytes)}"
        one = f"one save takes {size_text(self.save_bytes)}{self._each}"
        if self.held < 1:
            return f"{one}, and {there}: the first save would fail"
        two = f"two take {size_text(ROTATION * self.save_bytes)}"
        return f"{one}, {two}, and {there}: verl removes none before it writes the second, which would fail"

    @property
    def hint(self) -> str:
        """Ways to more room."""
        return (
            f"Make room: cloudrl checkpoints prune --cluster {self.facts.name} --keep-last 1\n"
            f"Or start the cluster with a larger disk: --volume /DISK:{self.facts.checkpoint_dir}\n"
            "On a cloud: --set disk=SIZE"
        )

    @property
    def warning(self) -> str | None:
        """That a later save fails unless older ones are removed; None if all have room, or too little is known."""
        at_once = ROTATION if self.at_once is None else self.at_once
        if not self.free_bytes or not 0 < self.held < at_once:
            return None
        room = f"{self.held} save{'s' * (self.held > 1)} of {size_text(self.save_bytes)}{self._each}"
        keeps = "may keep more" if self.at_once is None else f"keeps {self.at_once}"
        if self.nodes == 1 and self.held >= ROTATION:
            less = f"Keep fewer: {' '.join(f'{key}={self.held}' for key in self.kept_keys)}"
        else:
            less = f"Remove old ones while it runs: cloudrl checkpoints prune --cluster {self.facts.name} --keep-last 1"
        return f"{self.facts.checkpoint_dir} has room for {room}, and the run {keeps}. {less}"

    @property
    def _each(self) -> str:
        return "" if self.nodes == 1 else " on each node"
