"""Asks the nodes of a cluster for their checkpoints: side by side, and each folder once, however many nodes share it.

A node in whose folder a node of lower rank has left its marker does not list it: it names that marker instead. One
that names a node which does not answer, or which does not see it in turn, is asked again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from cloudrl.errors import ConnectionFailed, InputError, Unauthorized
from cloudrl.protocol.ranks import first_few, ranks_text
from cloudrl.protocol.report import NodeReport
from cloudrl.protocol.side_by_side import side_by_side
from cloudrl.saves.aggregate import aggregate, is_same
from cloudrl.saves.inventory import Inventory
from cloudrl.units import duration_text

_ROUNDS = 3
"""In which a folder that was not listed yet is listed by another node."""
_LIMIT_S = 180.0
"""After which no further node is asked."""


class AskInventory(Protocol):
    """Gives the inventory of a node, see `cloudrl.protocol.client.AgentClient.inventory`."""

    def __call__(self, rank: int, *, without: Collection[int] | None = None) -> Mapping[str, Any]:
        """Of this rank."""


def cluster_inventory(
    nodes: Iterable[NodeReport], ask: AskInventory, *, clock: Callable[[], float] = time.monotonic
) -> Inventory:
    """What the nodes of a cluster have; notes name those that do not answer.

    Args:
        nodes: Those of the cluster's status.
        ask: Gives the inventory of a node.
        clock: Seconds that never run backwards.

    Raises:
        Unauthorized: The token is refused.
        CheckpointError: A node gives a name that is not a path below a folder.
    """
    survey = _Survey(tuple(nodes), ask, clock)
    survey.run()
    inventory, silent = aggregate(survey.answers()), tuple(survey.silent())
    return Inventory(inventory.checkpoints, (*silent, *inventory.notes), silent)


class _Survey:
    def __init__(self, nodes: Sequence[NodeReport], ask: AskInventory, clock: Callable[[], float]) -> None:
        self._nodes = {node.rank: node for node in nodes}
        self._ask, self._clock, self._ends_at = ask, clock, clock() + _LIMIT_S
        self._said: dict[int, Mapping[str, Any]] = {}
        self._failed: dict[int, str] = {}

    def run(self) -> None:
        """Ask until each folder has been listed, or no node is left that could."""
        self._ask_all(self._nodes, ())
        without: set[int] = set()
        for _ in range(_ROUNDS):
            if not (unlisted := self._unlisted()):
                return
            without |= set(unlisted.values())
            self._ask_all(unlisted, sorted(without))
        self._ask_all([rank for rank, lister in self._unlisted().items() if lister not in self._failed], None)

    def answers(self) -> Iterator[tuple[NodeReport, Mapping[str, Any]]]:
        """(node, its inventory) of those whose folders are known."""
        unlisted = self._unlisted()
        return ((self._nodes[rank], self._said[rank]) for rank in sorted(self._said) if rank not in unlisted)

    def silent(self) -> Iterator[str]:
        """A sentence for each node that says nothing, and one for the rest where there are many."""
        few, several = first_few(self._failed)
        for rank in few:
            yield f"node {rank} ({self._nodes[rank].ip}) says nothing of its checkpoints: {self._failed[rank]}"
        if several:
            yield f"{ranks_text(several, 'node')} say nothing of their checkpoints either"
        if unlisted := self._unlisted():
            listers = ranks_text(unlisted.values(), "node")
            does = "do" if len(set(unlisted.values())) > 1 else "does"
            yield (
                f"the checkpoints of {ranks_text(unlisted, 'node')} are not known: the folder is that of {listers}, "
                f"which {does} not answer"
            )

    def _ask_all(self, ranks: Iterable[int], without: Collection[int] | None) -> None:
        def ask(rank: int) -> tuple[int, Mapping[str, Any] | str]:
            if self._clock() > self._ends_at:
                return rank, f"it was not asked, since others have taken {duration_text(_LIMIT_S)}"
            try:
                return rank, self._ask(rank, without=without)
            except Unauthorized:
                raise
            except (ConnectionFailed, InputError) as failure:
                return rank, failure.message

        for rank, answer in side_by_side(ask, ranks):
            if isinstance(answer, str):
                self._failed[rank] = answer
                self._said.pop(rank, None)
            else:
                self._said[rank] = answer

    def _unlisted(self) -> dict[int, int]:
        """Nodes with a folder that was not listed yet -> the node that is said to have it, too."""
        listed = [folder for answer in self._said.values() for folder in answer["locations"] if "runs" in folder]
        return {
            rank: int(folder["same_as"]["rank"])
            for rank, answer in sorted(self._said.items())
            for folder in answer["locations"]
            if "runs" not in folder and not any(is_same(other, folder) for other in listed)
        }
