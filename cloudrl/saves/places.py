"""Where the parts of a checkpoint are, for tables and messages. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cloudrl.protocol.ranks import ranks_text, spans
from cloudrl.saves.inventory import Location

_PLACES = 4
"""More than these are not told one by one."""


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
