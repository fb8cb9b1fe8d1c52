"""Which node is to have a copy of which file of a step."""

from typing import Any

import pytest
from copied_disks import ADDRESSES, Disks
from node_inventories import node, run, step

from cloudrl.errors import CheckpointError
from cloudrl.saves import copies
from cloudrl.saves.aggregate import aggregate
from cloudrl.saves.copies import choose_nodes, is_safe, partner_of, partners_stay, plan_copies


@pytest.mark.parametrize(
    ("count", "going", "stay"),
    [(1, {0}, False), (2, {1}, True), (2, {0, 1}, False), (4, {1, 2}, True), (4, {2, 3}, False), (3, {0, 1}, False)],
)
def test_a_copy_on_a_partner_helps_unless_that_goes_too(count, going, stay):
    assert partners_stay(range(count), going) is stay


@pytest.mark.parametrize(
    ("count", "partners"),
    [(1, [0]), (2, [1, 0]), (3, [1, 2, 0]), (4, [1, 0, 3, 2]), (5, [1, 0, 3, 4, 2]), (6, [1, 0, 3, 2, 5, 4])],
)
def test_nodes_are_partners_in_pairs_and_the_last_three_in_a_ring(count: int, partners: list[int]) -> None:
    assert [partner_of(rank, range(count)) for rank in range(count)] == partners


def _lose_a_machine(count: int, seed: int) -> str:
    """Save, copy while orders fail, lose the disk of a machine; returns what must not happen, and did."""
    disks = Disks(count, seed)
    disks.save(10)
    for _ in range(40):  # each look orders again what has failed
        disks.carry_out([*disks.plan().needed, *disks.plan().spare], failing=0.5)
    if seed % 3 == 0:  # an attempt that was given up has left other shards of the same names
        disks.files[0] |= {
            name: {**file, "modified_at": -900.0} for name, file in disks.files[0].items() if "_1" in name
        }
        disks.carry_out([*disks.plan().needed, *disks.plan().spare])
    if not is_safe(disks.inventory().checkpoints) or disks.plan().needed or disks.plan().spare:
        return f"{disks.copies()} copies after 40 looks"
    disks.files[disks.random.randrange(count)] = {}  # another machine, with an empty disk
    if is_safe(disks.inventory().checkpoints):
        return "safe on one machine"
    if disks.plan() is None:
        return "the step is lost"
    disks.carry_out(disks.plan().needed)
    try:
        return "" if disks.resumed_step() == 10 else "another step"
    except CheckpointError as error:
        return error.message


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_after_the_loss_of_any_one_machine_the_job_goes_on_from_its_last_save(count: int) -> None:
    assert [_lose_a_machine(count, seed) for seed in range(20)] == [""] * 20


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("partner_of", lambda rank, _ranks: rank),
        ("partner_of", lambda _rank, ranks: ranks[0]),
        ("of_one_save", list),
        ("readers", lambda *_: set()),
        ("SAFE_COPIES", 1),
    ],
)
def test_a_fault_in_the_real_code_is_found(monkeypatch: pytest.MonkeyPatch, name: str, planted: Any) -> None:
    monkeypatch.setattr(copies, name, planted)

    assert any(_lose_a_machine(count, seed) for count in (2, 3, 4) for seed in range(10))


def test_what_is_not_whole_yet_is_not_copied_and_the_step_before_is() -> None:
    disks = Disks(2)
    disks.save(10)
    disks.save(20)
    del disks.files[1]["global_step_20/actor/model_world_size_2_rank_1.pt"]

    plan = disks.plan()

    assert plan.step == 10
    assert [(order.rank, order.source, order.folder) for order in (*plan.needed, *plan.spare)] == [
        (1, 0, "night/global_step_10"), (0, 1, "night/global_step_10"), (1, 0, "night/global_step_10"),
    ]  # fmt: skip


def test_a_copy_of_an_earlier_save_counts_for_nothing() -> None:
    disks = Disks(2)
    disks.save(10)
    disks.carry_out([*disks.plan().needed, *disks.plan().spare])
    name = "global_step_10/actor/optim_world_size_2_rank_1.pt"
    disks.files[0][name] = {**disks.files[0][name], "modified_at": -3600.0}

    assert disks.copies() == 1
    assert [file.path for order in disks.plan().spare for file in order.files] == [f"night/{name}"]


def some_of_four(*steps: Any) -> Any:
    """Node -> what it says, of four nodes of which nodes 1 and 2 have trained with the controller on node 1."""
    own = {1: step(10, (0,)), 2: step(10, (1,), config=False, data=False)} if steps else {}
    return aggregate([node(rank, *([run("night", own[rank])] if rank in own else [])) for rank in range(4)])


def test_a_job_that_does_not_take_all_nodes_goes_where_its_shards_are() -> None:
    def chosen(inventory: Any) -> tuple[int, ...]:
        return choose_nodes(inventory, "night", world_size=2, count=2, nodes=range(4))

    assert chosen(some_of_four()) == (0, 1)
    assert chosen(some_of_four(10)) == (1, 2)


def test_its_controller_is_on_the_head_and_any_node_keeps_a_copy() -> None:
    addresses = {rank: ADDRESSES[rank] for rank in range(4)}
    plan = plan_copies(some_of_four(10), "night", world_size=2, addresses=addresses, order=(1, 2))
    assert plan is not None
    [loader] = plan.needed
    assert (loader.rank, [file.path for file in loader.files]) == (0, ["night/global_step_10/data.pt"])
    assert {(order.source, order.rank) for order in plan.spare} == {(1, 0), (2, 3)}
    assert all("_rank_" in file.path or "huggingface" in file.path for order in plan.spare for file in order.files)


def test_records_come_last() -> None:
    disks = Disks(2)
    disks.save(10)
    record = "global_step_10/actor/cloudrl_save_world_size_2_rank_1.json"
    disks.files[1][record] = {"path": record.rpartition("/")[2], "size_bytes": 9, "modified_at": 10.0}

    [order] = [order for order in disks.plan().spare if order.source == 1]

    assert [file.path.rpartition("/")[2][:5] for file in order.files] == ["extra", "model", "optim", "cloud"]


def test_a_folder_that_all_nodes_share_needs_no_copies() -> None:
    whole = step(10)
    shared = aggregate([node(rank, run("night", whole), identity="boot:1:2") for rank in (0, 1)])

    assert is_safe(shared.checkpoints)
    plan = plan_copies(shared, "night", world_size=2, addresses={0: "10.0.0.1", 1: "10.0.0.2"})
    assert plan is not None
    assert (plan.needed, plan.spare) == ((), ())
