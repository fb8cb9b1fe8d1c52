"""Where the files of a checkpoint are, also for tables and messages. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cloudrl.protocol.mirrors import MIRROR_RANK
from cloudrl.protocol.ranks import ranks_text, spans
from cloudrl.saves.names import on_one_line

_PLACES = 4
"""More than these are not told one by one."""


@dataclass(frozen=True)
class Location:
    """A folder of checkpoints, on as many nodes as share it.

    Attributes:
        ranks: Nodes that have it, the first of them is asked for its bytes; none is this machine.
        addresses: Of these nodes.
        root: What the agent calls it (`cloudrl.protocol.routes`).
        folder: Its path there.
    """

    ranks: tuple[int, ...]
    addresses: tuple[str, ...]
    root: str
    folder: str

    @property
    def label(self) -> str:
        """For messages: `node 1 (10.0.0.2)`."""
        if not self.ranks:
            return "this machine"
        if self.ranks[0] == MIRROR_RANK:
            return "the mirror"
        return f"node {self.ranks[0]} ({self.addresses[0]})"

    @property
    def short(self) -> str:
        """For a table; nothing for this machine."""
        if not self.ranks:
            return ""
        return ranks_text(self.ranks, "node") if self.ranks[0] != MIRROR_RANK else "the mirror"


@dataclass(frozen=True)
class FileCopy:
    """One file in one location; `path` is relative to the location's folder.

    Attributes:
        damage: Why it is not whole (`cloudrl.saves.wholeness`); "" for a whole one, and for one not looked into.
    """

    location: Location
    path: str
    size_bytes: int
    modified_at: float
    damage: str = ""

    @property
    def label(self) -> str:
        """For messages."""
        return on_one_line(f"{self.location.label}: {self.location.folder.rstrip('/')}/{self.path}")


def nodes_text(locations: Iterable[Location]) -> str:
    """The nodes that have any of some locations: `nodes 0-3`; nothing for this machine."""
    ranks = {rank for location in locations for rank in location.ranks}
    return ranks_text(ranks, "node") if ranks else ""


def places_text(locations: Mapping[Location, Sequence[int]]) -> str:
    """Which training ranks are where: `0-1 on node 0; 2-3 on node 1`, of many places all in one: `0-63 on nodes 0-7`.

    Args:
        locations: See `Checkpoint.locations`.
    """
    if len(locations) > _PLACES:
        held = {rank for ranks in locations.values() for rank in ranks}
        return " on ".join(filter(None, (spans(held), nodes_text(locations))))
    return "; ".join(" on ".join(filter(None, (spans(held), place.short))) for place, held in locations.items())
