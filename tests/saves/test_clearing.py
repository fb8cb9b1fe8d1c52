"""Which copies of a run's steps go, and which steps, once a newer one is safe."""

from typing import Any

from node_inventories import node, run, step

from cloudrl.node.old_steps import OldSteps
from cloudrl.protocol.durable_jobs import DurableJob
from cloudrl.protocol.report import NodeReport
from cloudrl.saves.aggregate import aggregate
from cloudrl.saves.clearing import plan_clearing
from cloudrl.saves.inventory import Inventory

ADDRESSES = {0: "10.0.0.1", 1: "10.0.0.2"}
BOTH = (0, 1)


def _inventory(steps: dict[int, tuple[Any, Any]]) -> Inventory:
    """Step -> the ranks whose files node 0 has, and those that node 1 has."""
    nodes = []
    for place in BOTH:
        said = [
            step(number, ranks[place], config=0 in ranks[place], data=0 in ranks[place])
            for number, ranks in steps.items()
            if ranks[place]
        ]
        nodes.append(node(place, run("night", *said)))
    return aggregate(nodes)


def _cleared(steps: dict[int, tuple[Any, Any]]) -> dict[tuple[int, str], list[str]]:
    orders = plan_clearing(_inventory(steps), "night", world_size=2, addresses=ADDRESSES)
    return {(order.rank, order.folder): [file.path.rpartition("/")[2] for file in order.files] for order in orders}


def test_copies_of_steps_before_the_newest_safe_one_go() -> None:
    cleared = _cleared({1: (BOTH, BOTH), 2: (BOTH, BOTH), 3: ((0,), (1,))})

    assert {place: len(names) for place, names in cleared.items()} == {
        (0, "night/global_step_1"): 3,
        (1, "night/global_step_1"): 5,
    }
    assert all("rank_1" in name for name in cleared[0, "night/global_step_1"])
    assert not any("rank_1" in name for name in cleared[1, "night/global_step_1"])


def test_nothing_goes_while_no_step_is_safe_and_no_only_copy() -> None:
    assert _cleared({1: ((0,), (1,)), 2: ((0,), (1,))}) == {}
    assert _cleared({1: ((0,), (1,)), 2: (BOTH, BOTH)}) == {}
    assert _cleared({1: (BOTH, BOTH), 2: (BOTH, (1,))}) == {}


class _Agent:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def request(self, _route: Any, **arguments: Any) -> str:
        return str(arguments["path"])

    def call(self, request: str, _read: Any, *_: Any) -> int:
        self.asked.append(request)
        return 0

    def remove_step(self, rank: int, _root: str, path: str) -> None:
        self.asked.append((rank, path))


def _removed(steps: dict[int, tuple[Any, Any]], *, keep: int, copying: int | None = None, silent: str = "") -> Any:
    agent, inventory = _Agent(), _inventory(steps)
    if silent:
        inventory = Inventory(inventory.checkpoints, (), (silent,))
    reports = [NodeReport(rank, address) for rank, address in ADDRESSES.items()]
    old_steps = OldSteps(lambda: reports, lambda _: agent, say=lambda _: None)  # type: ignore[arg-type,return-value]
    job = DurableJob("job", "night", "", {}, 0.0, world_size=2, keep=keep)
    for _ in range(2):
        old_steps.clear([job], inventory, ADDRESSES, {}, {"night": (copying,)})
    return agent.asked


def test_steps_beyond_those_to_keep_go_and_the_newest_safe_one_stays() -> None:
    alone = ((0,), (1,))
    one_round = [(0, "night/global_step_1"), (1, "night/global_step_1")]

    assert _removed({1: alone, 2: (BOTH, BOTH), 3: alone, 4: alone}, keep=2) == one_round * 2
    assert _removed({1: alone, 2: (BOTH, BOTH), 3: alone, 4: alone}, keep=0) == []


def test_a_step_that_is_being_copied_stays_and_all_do_while_a_node_is_silent() -> None:
    alone = ((0,), (1,))

    assert _removed({1: alone, 2: alone}, keep=1, copying=1) == []
    assert _removed({1: alone, 2: alone}, keep=1, silent="node 1 says nothing") == []
    assert _removed({1: alone, 2: alone}, keep=1)[:1] == [(0, "night/global_step_1")]


def test_a_node_is_asked_once_for_what_it_keeps() -> None:
    asked = _removed({1: (BOTH, BOTH), 2: (BOTH, BOTH)}, keep=0)

    assert asked == ["night/global_step_1", "night/global_step_1"]  # node 0 and node 1, in the first round
