"""Old steps go from all nodes side by side, a bounded number at once."""

import threading

import pytest
from node_inventories import node, run, step
from patience import SLOWER

from cloudrl.checkpoints.handle import Checkpoints
from cloudrl.errors import CheckpointError
from cloudrl.protocol.side_by_side import AT_ONCE
from cloudrl.saves.aggregate import aggregate
from cloudrl.saves.inventory import Inventory
from cloudrl.saves.places import Location
from cloudrl.sdk.checkpoints import prune

NODES = 256


class Nodes:
    """Each has the shard of its rank, of three steps; some cannot remove theirs."""

    name = "many"
    place = "cluster many"

    def __init__(self, stubborn: tuple[int, ...] = ()) -> None:
        self._stubborn, self._lock = stubborn, threading.Lock()
        self.removed: list[tuple[int, str]] = []
        self._meeting = threading.Barrier(AT_ONCE)
        self._at_once = self.most_at_once = 0

    def inventory(self) -> Inventory:
        steps = (1, 2, 3)
        return aggregate(
            node(rank, run("r", *(step(number, (rank,), NODES) for number in steps), tracker="3"))
            for rank in range(NODES)
        )

    def remove_rest(self) -> None:
        """Nothing was left by an earlier one."""

    def remove(self, location: Location, path: str) -> None:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        self._meeting.wait(30 * SLOWER)  # all wait for each other
        with self._lock:
            self._at_once -= 1
            if location.ranks[0] in self._stubborn:
                raise CheckpointError(f"{location.label}: {path} cannot be removed")
            self.removed.append((location.ranks[0], path))


def test_a_step_goes_from_all_nodes_side_by_side() -> None:
    nodes = Nodes()
    plan = prune(Checkpoints(nodes), 1, confirm=lambda _: True)  # type: ignore[arg-type]
    assert [each.step for each in plan.removals] == [1, 2]
    assert nodes.most_at_once == AT_ONCE
    assert sorted(nodes.removed) == [
        (rank, f"r/global_step_{number}") for rank in range(NODES) for number in (1, 2)
    ]  # fmt: skip


def test_one_that_cannot_keeps_no_other_from_it() -> None:
    nodes = Nodes(stubborn=(7, 8, 200))
    with pytest.raises(
        CheckpointError, match=r"node 7 .*global_step_1 cannot be removed \(nodes 8, 200 cannot remove it either"
    ):
        prune(Checkpoints(nodes), 1, confirm=lambda _: True)  # type: ignore[arg-type]
    assert len(nodes.removed) == NODES - 3, "no step after it is begun"
