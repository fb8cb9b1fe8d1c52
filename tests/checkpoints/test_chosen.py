"""What `checkpoints prune` keeps in place of what durable jobs keep."""

from dataclasses import replace

import pytest
from node_inventories import node, run, step

from cloudrl.checkpoints.chosen import mark_chosen
from cloudrl.errors import InputError
from cloudrl.protocol.durable_jobs import DurableJob, Keeping, Score
from cloudrl.saves.aggregate import aggregate
from cloudrl.saves.keeping import mark_kept
from cloudrl.saves.prune import plan_prune

SCORES = (Score(1, 0.1, 1), Score(2, 0.9, 2), Score(3, 0.5, 3))
JOB = DurableJob("job", "night", "", {}, 0.0, keep_every=2, kept_before=(Keeping(best="m", scores=SCORES),))
INVENTORY = mark_kept(aggregate([node(0, run("night", *map(step, (1, 2, 3, 4))), run("day", step(1), step(2)))]), JOB)


@pytest.mark.parametrize(
    ("every", "best", "removed"),
    [(3, "", [1, 2]), (0, "", [1, 2, 3]), (0, "m", [1, 3]), (0, "min:m", [2, 3]), (3, "max:m", [1])],
)
def test_another_rule_takes_the_place_of_the_jobs(every: int, best: str, removed: list[int]) -> None:
    marked = mark_chosen(INVENTORY, [JOB], every=every, best=best, run="night")

    assert [removal.step for removal in plan_prune(marked, 1, run="night").removals] == removed


@pytest.mark.parametrize(
    ("best", "name", "hint"),
    [("n", "night", "--keep-best m"), ("m", "day", "--keep-every 100"), ("m", None, "--name RUN")],
)
def test_a_best_step_that_is_not_known_lets_none_go(best: str, name: str | None, hint: str) -> None:
    with pytest.raises(InputError, match="no durable job has recorded values") as refused:
        mark_chosen(INVENTORY, [JOB, replace(JOB, run="other")], every=0, best=best, run=name)
    assert hint in (refused.value.hint or "")
