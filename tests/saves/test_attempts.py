"""What several attempts of one run have left, on several nodes: which of it counts."""

from typing import Any

import pytest
from node_inventories import node, run, step

from cloudrl.errors import CheckpointError, ConnectionFailed
from cloudrl.saves.aggregate import aggregate
from cloudrl.saves.inventory import Inventory
from cloudrl.saves.prune import plan_prune
from cloudrl.saves.records import SaveRecord

BAD = ["", "/", "/etc/passwd", "..", ".", "../x", "a/../../x", "a//b", "a/", "./a", "a\0b", "a\ud800b"]


# -- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("where", ["run", "role", "file", "beside"])
def test_a_name_that_leaves_the_folder_is_refused(where: str, name: str) -> None:
    """It would be a path of the user's machine."""
    if (where, name) == ("run", "."):
        return  # the folder of checkpoints itself
    said = step(1)
    if where == "role":
        said["roles"][0]["role"] = name
    elif where != "run":
        files = said["roles"][0]["files"] if where == "file" else said["files"]
        files.append({"path": name, "size_bytes": 1, "modified_at": 1.0})
    with pytest.raises(CheckpointError, match=r"node 0 \(10.0.0.1\) names .* which is not a path below") as raised:
        aggregate([node(0, run(name if where == "run" else "r", said))])
    assert "look at that node" in str(raised.value.hint)


def test_odd_names_that_stay_below_it_are_fine() -> None:
    said = step(1)
    said["roles"][0]["files"].append({"path": "a b/..c/d..", "size_bytes": 1, "modified_at": 1.0})
    assert "a b/..c/d.." in aggregate([node(0, run("my run/x", said))]).checkpoints[0].files


# -- the latest --------------------------------------------------------------------------------------------------


def record(rank: int = 0, *, at: float) -> dict[str, Any]:
    return {"path": f"cloudrl_save_world_size_2_rank_{rank}.json", "size_bytes": 9, "modified_at": at}


def test_what_an_agent_writes_down_later_makes_a_run_no_newer() -> None:
    old = step(99, at=9.0)
    old["roles"][0]["files"].append(record(at=1000.0))
    found = aggregate([node(0, run("new", step(4, at=60.0)), run("old", old))])
    assert (found.select().run, found.select().step) == ("new", 4)
    assert found.select(99).modified_at == 9.0


@pytest.mark.parametrize(
    ("steps", "tracker", "latest"),
    [
        ((step(10, at=1000.0), step(50, at=500.0)), "10", 10),  # after a new start, the old attempt's do not count
        ((step(10, at=100.0), step(20, at=200.0)), "10", 20),  # later than the tracked one, and written later
        ((step(10, at=1000.0), step(50, at=500.0)), None, 50),
    ],
)
def test_which_step_is_the_latest(steps: tuple[dict[str, Any], ...], tracker: str | None, latest: int) -> None:
    found = aggregate([node(0, run("r", *steps, tracker=tracker, at=steps[0]["files"][0]["modified_at"] + 1))])
    assert found.select().step == latest


def test_a_silent_node_may_have_the_latest() -> None:
    found = aggregate([node(0, run("r", step(10)))])
    half = Inventory(found.checkpoints, ("node 1 is silent",), ("node 1 is silent",))
    with pytest.raises(ConnectionFailed, match="node 1 is silent; it may have a later step") as raised:
        half.select()
    assert "name a step" in str(raised.value.hint)
    assert half.select(10).step == 10


# -- one step of two attempts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["data.pt", "data_0.pt"])
def test_a_shard_of_a_later_attempt_makes_a_step_unfinished(data: str) -> None:
    half = step(10, at=100.0)
    half["files"][0]["path"] = data
    half["roles"][0]["files"][0]["modified_at"] = 400.0
    (found,) = aggregate([node(0, run("r", half, tracker="10", at=101.0))]).checkpoints
    assert not found.complete
    shard = "model_world_size_2_rank_0.pt"
    assert found.missing == (
        f"the end of a later save ({shard} is 5 min 00 s newer than {data}, which is written last)",
    )


def test_clocks_of_nodes_may_be_a_minute_apart() -> None:
    nodes = [
        node(0, run("r", step(10, (0,), at=100.0), tracker="10")),
        node(1, run("r", step(10, (1,), data=False, config=False, at=160.0))),
    ]
    (found,) = aggregate(nodes).checkpoints
    assert found.complete


def test_of_two_copies_the_record_beside_the_chosen_one_counts() -> None:
    saved = {at: SaveRecord(1, "actor", 0, 2, at) for at in (9.0, 5.0)}
    newer, older = (node(rank, run("r", step(1, at=at, saves=[saved[at].to_json()]))) for rank, at in enumerate(saved))
    for order in ([newer, older], [older, newer]):
        assert aggregate(order).checkpoints[0].records == {0: saved[9.0]}


# -- pruning while a job begins anew -----------------------------------------------------------------------------


def test_a_step_that_is_written_after_the_newest_one_stays() -> None:
    steps = (step(10, at=1000.0), step(12, (0,), at=1015.0), step(40, at=400.0), step(50, at=500.0))
    found = aggregate([node(0, run("r", *steps, tracker="10", at=1001.0))])
    pruning = plan_prune(found, 1)
    assert [each.step for each in pruning.removals] == [40]
    assert "r: step 12 stays: it was written after step 50, so a job may be at it" in pruning.notes


def test_a_step_that_is_written_after_the_tracker_stays() -> None:
    found = aggregate(
        [node(0, run("r", step(5, at=120.0), step(6, at=60.0), step(50, at=500.0), tracker="50", at=70.0))]
    )
    pruning = plan_prune(found, 1)
    assert [each.step for each in pruning.removals] == [6]
    assert pruning.notes == ("r: step 5 stays: it was written after the tracker, so a job may be at it",)
