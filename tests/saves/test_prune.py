"""What may go: never the newest complete step, nor one that somebody would go on from."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_inventories import node, run, step
from small_step import write_names

from cloudrl.checkpoints.sources import LocalSource
from cloudrl.errors import CheckpointError, InputError
from cloudrl.saves.aggregate import aggregate
from cloudrl.saves.prune import PrunePlan, plan_prune


def gone(pruning: PrunePlan) -> list[tuple[str, int]]:
    return [(each.run, each.step) for each in pruning.removals]


@pytest.mark.parametrize(
    ("steps", "keep", "goes"),
    [
        ((step(1), step(2), step(3), step(4)), 1, [1, 2, 3]),
        ((step(1), step(2), step(3), step(4)), 3, [1]),
        ((step(1), step(2), step(3), step(4)), 9, []),
        ((step(1), step(2), step(3, (0,)), step(4, data=False)), 1, [1]),  # what is newer may still be written
        ((step(1), step(2, (0,)), step(3)), 1, [1, 2]),  # what is incomplete does not count, and goes
        ((step(1), step(2, (0,)), step(3)), 2, []),
    ],
)
def test_the_newest_complete_ones_stay(steps: tuple[dict[str, object], ...], keep: int, goes: list[int]) -> None:
    tracker = "2" if len(steps) == 4 and "data.pt" not in str(steps[3]) else str(len(steps))
    found = aggregate([node(0, run("r", *steps, tracker=tracker))])
    assert gone(plan_prune(found, keep)) == [("r", number) for number in goes]


def test_the_newest_step_that_two_machines_have_stays() -> None:
    both, one = {"ranks": (0, 1)}, {"ranks": (0,)}
    nodes = [
        node(rank, run("r", step(1, **both), step(2, **both), step(3, **(one if rank == 0 else {"ranks": (1,)}))))
        for rank in (0, 1)
    ]
    pruning = plan_prune(aggregate(nodes), 1)
    assert gone(pruning) == [("r", 1)]
    assert pruning.notes == ("r: step 2 stays: the later ones are on one machine alone",)


def test_a_critic_that_is_not_whole_makes_the_step_incomplete() -> None:
    three = step(3)
    three["roles"] += step(3, (0,), role="critic")["roles"]
    found = aggregate([node(0, run("r", step(1), step(2), three))])
    assert gone(plan_prune(found, 1)) == [("r", 1)]


def with_critic(number: int) -> dict[str, Any]:
    found = step(number)
    found["roles"] += step(number, role="critic")["roles"]
    return found


def test_a_step_whose_critic_is_gone_is_no_reason_to_remove_one_that_has_it() -> None:
    found = aggregate([node(0, run("r", with_critic(1), with_critic(2), step(3), tracker="3"))])
    pruning = plan_prune(found, 1)
    assert gone(pruning) == [("r", 1)]
    assert pruning.notes == ("r: step 3 does not count as kept: it has no critic, and the step before has one",)


def test_a_run_that_has_no_critic_any_more_is_pruned() -> None:
    found = aggregate([node(0, run("r", with_critic(1), step(2), step(3), tracker="3"))])
    assert gone(plan_prune(found, 1)) == [("r", 1), ("r", 2)]


def test_a_role_whose_shards_are_gone_is_not_complete() -> None:
    """Its config and tokenizer are all that is left of it."""
    left = with_critic(2)
    left["roles"][1]["files"] = [each for each in left["roles"][1]["files"] if each["path"].startswith("huggingface/")]
    found = aggregate([node(0, run("r", with_critic(1), left, tracker="2"))])
    assert [each.missing for each in found.checkpoints] == [(), (), (), ("the weights",)]
    assert gone(plan_prune(found, 1)) == []


def test_files_of_ranks_that_a_world_size_has_not_do_not_count() -> None:
    only = step(1, (0, 1, 7))
    only["roles"][0]["files"] = [
        each for each in only["roles"][0]["files"] if "optim_world_size_2_rank_7" not in each["path"]
    ]
    only["roles"][0]["files"].append(
        {"path": "cloudrl_withdrawn_world_size_2_rank_7", "size_bytes": 0, "modified_at": 1.0}
    )
    [found] = aggregate([node(0, run("r", only, tracker="1"))]).checkpoints
    assert (found.complete, found.ranks, found.missing) == (True, (0, 1), ())


def test_without_a_complete_one_all_stay() -> None:
    found = aggregate([node(0, run("r", step(1, (0,)), step(2, (1,))))])
    pruning = plan_prune(found, 1)
    assert (gone(pruning), pruning.notes) == ([], ("r: no step is complete, so all stay",))


def test_what_any_tracker_names_stays() -> None:
    """The tracker of the driver's node decides, and the next driver may run on another node."""
    steps = [step(number, (0,)) for number in (1, 2, 3)]
    others = [step(number, (1,)) for number in (1, 2, 3)]
    found = aggregate([node(0, run("r", *steps, tracker="1", at=1.0)), node(1, run("r", *others, tracker="3", at=2.0))])
    pruning = plan_prune(found, 1)
    assert gone(pruning) == [("r", 2)]
    assert "step 1 stays: a tracker names it" in pruning.notes[0]


@pytest.mark.parametrize(
    ("command", "stays"),
    [
        ("python3 -m verl trainer.resume_from_path=/checkpoints/r/global_step_1", True),
        ("python3 -m verl 'trainer.resume_from_path=\"/checkpoints/r/global_step_1\"' x=1", True),
        ("python3 -m verl trainer.resume_from_path=/checkpoints/other/global_step_1", False),
        ("python3 -m verl trainer.resume_from_path=/checkpoints/xr/global_step_1", False),
        ("python3 -m verl trainer.resume_from_path=/checkpoints/r/global_step_11", False),
        ("python3 -m verl", False),
    ],
)
def test_what_a_running_job_names_stays(command: str, stays: bool) -> None:
    found = aggregate([node(0, run("r", step(1), step(2), tracker="2"))])
    assert gone(plan_prune(found, 1, commands=[command])) == ([] if stays else [("r", 1)])


def test_each_run_has_its_own() -> None:
    found = aggregate([node(0, run("a", step(1), step(2)), run("b", step(1), step(2)))])
    assert gone(plan_prune(found, 1)) == [("a", 1), ("b", 1)]
    assert gone(plan_prune(found, 1, run="b")) == [("b", 1)]


def test_it_goes_on_all_nodes_that_have_some_of_it() -> None:
    found = aggregate(
        [node(0, run("r", step(1, (0,)), step(2, (0,)))), node(1, run("r", step(1, (1,), config=False), step(2, (1,))))]
    )
    (removal,) = plan_prune(found, 1).removals
    assert ([place.ranks for place in removal.locations], removal.path) == ([(0,), (1,)], "r/global_step_1")
    assert removal.size_bytes == 72, "data.pt of both, too"


def test_it_goes_on_a_node_that_has_only_the_state_of_the_data_loader() -> None:
    """The driver's, which may run where no rank does."""
    alone = {**step(1), "roles": []}
    found = aggregate([node(0, run("r", step(1, data=False), step(2))), node(1, run("r", alone)), node(2, run("r"))])
    (removal,) = plan_prune(found, 1).removals
    assert [place.ranks for place in removal.locations] == [(0,), (1,)]
    assert removal.size_bytes == 71


@pytest.mark.parametrize("keep", [0, -1])
def test_something_must_stay(keep: int) -> None:
    with pytest.raises(InputError, match=f"--keep-last {keep} would leave nothing"):
        plan_prune(aggregate([node(0)]), keep)


@given(
    whole=st.lists(st.booleans(), min_size=1, max_size=8),
    keep=st.integers(1, 5),
    tracked=st.one_of(st.none(), st.integers(0, 8)),
)
def test_whatever_there_is_the_newest_complete_one_and_the_tracked_one_stay(
    whole: list[bool], keep: int, tracked: int | None
) -> None:
    steps = [step(number, (0, 1) if complete else (0,)) for number, complete in enumerate(whole)]
    found = aggregate([node(0, run("r", *steps, tracker=None if tracked is None else str(tracked)))])
    removed = {number for _, number in gone(plan_prune(found, keep))}
    complete = [number for number, each in enumerate(whole) if each]
    assert not removed & set(complete[-keep:])
    assert tracked not in removed
    assert removed or len(complete) <= keep or set(range(complete[-keep])) <= {tracked}


def test_a_step_that_is_a_link_stays(tmp_path: Path) -> None:
    for name, number in (("other", 1), ("r", 2), ("r", 3)):
        write_names(tmp_path / name, number)
    (tmp_path / "r" / "global_step_1").symlink_to(tmp_path / "other" / "global_step_1")
    pruning = plan_prune(LocalSource(tmp_path / "r").inventory(), 1)
    assert gone(pruning) == [(".", 2)]
    assert "step 1 stays: it is a link" in pruning.notes[0]


def test_a_step_of_a_folder_is_removed(tmp_path: Path) -> None:
    for number in (1, 2):
        write_names(tmp_path / "r", number)
    origin = LocalSource(tmp_path)
    (removal,) = plan_prune(origin.inventory(), 1).removals
    for place in removal.locations:
        origin.remove(place, removal.path)
    assert [each.step for each in origin.inventory().checkpoints] == [2]
    assert [each.name for each in (tmp_path / "r").iterdir()] == ["global_step_2"]
    with pytest.raises(CheckpointError, match="cannot be removed"):
        origin.remove(removal.locations[0], removal.path)
