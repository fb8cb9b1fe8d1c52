"""Steps of attempts that a job has left behind, on a machine that comes back."""

from typing import Any

from node_inventories import node, run, step

from cloudrl.protocol.durable_jobs import Attempt, DurableJob
from cloudrl.saves.aggregate import aggregate
from cloudrl.saves.inventory import Checkpoint, Inventory
from cloudrl.saves.lineage import without_abandoned

FIRST, SECOND = Attempt(1, "job", "c", 0, 1000.0, 2000.0), Attempt(2, "job-2", "c", 4, 3000.0)


def _job(*attempts: Attempt) -> DurableJob:
    return DurableJob("job", "night", "", {}, 0.0, world_size=2, attempts=attempts)


def _inventory(old: float, new: float, number: int = 6) -> Inventory:
    """Node 0 has saved the step at one time, and node 1 at another, where the controller was."""
    mine: Any = step(number, (0,), data=False, at=old)
    others: Any = step(number, (1,), config=False, at=new)
    return aggregate([node(0, run("night", mine), run("day", mine)), node(1, run("night", others))])


def _of(inventory: Inventory, job: DurableJob) -> dict[int, Checkpoint]:
    return {one.step: one for one in without_abandoned(inventory, job).checkpoints if one.run == job.run}


def test_shards_of_two_attempts_are_not_one_step() -> None:
    inventory = _inventory(old=1500.0, new=3500.0)
    assert [one.complete for one in inventory.checkpoints if one.run == "night"] == [True]

    mixed = _of(inventory, _job(FIRST, SECOND))[6]

    assert mixed.ranks == (1,)
    assert not mixed.complete


def test_a_whole_step_that_was_left_behind_does_not_count() -> None:
    assert _of(_inventory(1500.0, 1500.0), _job(FIRST, SECOND)) == {}
    assert without_abandoned(_inventory(1500.0, 1500.0), _job(FIRST, SECOND)).checkpoints[0].run == "day"


def test_what_counts_stays() -> None:
    told = Attempt(2, "job-2", "c", 4, 3000.0, saved_step=6)
    for old, new, number, attempts in (
        (3500.0, 3500.0, 6, (FIRST, SECOND)),  # of the newest attempt
        (1500.0, 1500.0, 4, (FIRST, SECOND)),  # the step that it has started from
        (1500.0, 1500.0, 6, (FIRST,)),
        (1500.0, 1500.0, 6, (FIRST, told)),  # a clock was set back
    ):
        assert _of(_inventory(old, new, number), _job(*attempts))[number].complete
