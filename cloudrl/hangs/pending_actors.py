"""Actors of a job that no node of its Ray cluster has room for, and since when. Pure.

Ray 2.60: rows of `/api/v0/actors` and `/api/v0/nodes` with `detail=true` (util/state/common.py). An actor waits in
`PENDING_CREATION` without a time-out, whether its resources are in use or no node has as much, and no row says which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloudrl.hangs.ray_rows import WAITS_S, resources_text
from cloudrl.protocol.job_phases import Blame
from cloudrl.units import duration_text

_WAITS = ("PENDING_CREATION", "RESTARTING")
_NEVER_S = 30.0
"""For so long no node may have as much as an actor needs: then it is no node that has yet to come up."""
_UNKNOWN_S = 120.0
_UNKNOWN_NEED = {"CPU": 1.0}
"""An actor that names no resources needs a CPU until it has started (Ray 2.60, actor.py). Its row does not tell that
from one that needs nothing, whose process may also start slowly."""
_TOLERANCE = 1e-3
"""Of fractions of a GPU, which Ray adds up."""
_MOST = 2


@dataclass(frozen=True)
class Room:
    """A node that lives.

    Attributes:
        total: name of a resource -> what the node has of it.
        used: likewise, what is in use; what is missing here is free.
    """

    total: Mapping[str, float]
    used: Mapping[str, float]

    def has(self, need: Mapping[str, float], *, is_free: bool) -> bool:
        """Whether the node has that much, or has it free."""
        return all(
            count <= self.total.get(name, 0.0) - (self.used.get(name, 0.0) if is_free else 0.0) + _TOLERANCE
            for name, count in need.items()
        )


class PendingActors:
    """Since when each actor has waited. No clock of its own."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, bool], float] = {}
        """Actor id, and whether any node could have room for it -> the first of the answers that say so."""

    def add(self, actors: Sequence[Any], job_id: str, nodes: Sequence[Room], at: float) -> tuple[Blame, ...]:
        """The actors of a job that have waited for too long, by this answer of Ray's and those before.

        Args:
            actors: rows.
            job_id: Ray's own id of the job.
            nodes: all that live; without any, nothing is known.
            at: seconds of a clock that never runs backwards.
        """
        before, self._since, found = self._since, {}, []
        for actor in actors if nodes else ():
            if not _is_waiting(actor, job_id):
                continue
            named = _numbers(actor.get("required_resources"))
            need, is_possible = named or _UNKNOWN_NEED, any(node.has(named, is_free=False) for node in nodes)
            if any(node.has(need, is_free=True) for node in nodes):
                continue
            key = str(actor.get("actor_id")), is_possible
            since = self._since[key] = before.get(key, at)
            limit_s = (WAITS_S if named else _UNKNOWN_S) if is_possible else _NEVER_S
            if at - since >= limit_s:
                name = str(actor.get("class_name") or "an actor").rpartition(".")[2]
                found.append(Blame(None, name, _reason(need, nodes, at - since, is_possible=is_possible)))
        return tuple(found[:_MOST])


def rooms(nodes: Sequence[Any], used: Mapping[str, Mapping[str, float]]) -> list[Room]:
    """Nodes that live.

    Args:
        nodes: rows.
        used: id of a node -> what is in use there.
    """
    return [
        Room(_numbers(node.get("resources_total")), used.get(str(node.get("node_id")), {}))
        for node in nodes
        if isinstance(node, dict) and node.get("state") == "ALIVE"
    ]


def _is_waiting(actor: Any, job_id: str) -> bool:
    """Whether it waits for a node. One in a placement group waits for that, which is reported itself."""
    if not isinstance(actor, dict) or actor.get("job_id") != job_id or actor.get("placement_group_id"):
        return False
    return actor.get("state") in _WAITS


def _reason(need: Mapping[str, float], nodes: Sequence[Room], waited_s: float, *, is_possible: bool) -> str:
    needs = resources_text(need)
    if is_possible:
        return f"has waited {duration_text(waited_s)} for a node with {needs} free"
    most = {name: max(node.total.get(name, 0.0) for node in nodes) for name in need}
    missing = {name: count for name, count in most.items() if need[name] > count + _TOLERANCE}
    largest = f"no node has more than {resources_text(missing)}" if missing else "no node has all of it"
    return f"needs {needs} on one node, but {largest}"


def _numbers(resources: Any) -> dict[str, float]:
    """The resources of a row, without what is no number."""
    items = resources.items() if isinstance(resources, dict) else ()
    return {
        str(name): float(count)
        for name, count in items
        if isinstance(count, (int, float)) and not isinstance(count, bool)
    }
