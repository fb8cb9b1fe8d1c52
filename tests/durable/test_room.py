"""A job that has found a disk full waits until its next save has room."""

from dataclasses import replace

from node_inventories import node, run, step

from cloudrl.durable.attempt_plan import waits_for_room
from cloudrl.durable.verdicts import FULL_DISK
from cloudrl.protocol.durable_jobs import Attempt, DurableJob, Verdict
from cloudrl.saves.aggregate import aggregate

ATTEMPT = Attempt(1, "a", "c-1", 0, 0.0, ended_at=1.0, verdict=Verdict.INFRASTRUCTURE, signature=FULL_DISK)
JOB = DurableJob("a", "night", "c", {}, 0.0, world_size=2, attempts=(ATTEMPT,))
WHOLE, HALF = step(1, (0, 1)), step(2, (0,))
INVENTORY = aggregate([node(0, run("night", WHOLE, HALF)), node(1, run("night"))])
BOTH = (0, 1)
SAVE_BYTES = sum(role.size_bytes for role in INVENTORY.checkpoints if role.step == 1)


def test_it_waits_for_the_rank_without_room_and_says_what_to_do() -> None:
    half = SAVE_BYTES // 2

    said = waits_for_room(JOB, INVENTORY, {0: half, 1: half - 1}, BOTH, "lab")
    assert said.startswith("the disk of rank 1 has ")
    assert said.endswith("make room there: night/global_step_2 broke off, and may be removed")
    assert not waits_for_room(JOB, INVENTORY, {0: half, 1: half}, BOTH, "lab")
    assert waits_for_room(JOB, INVENTORY, {0: half}, [0], "lab"), "one folder for all takes the whole save"


def test_prune_is_the_remedy_only_where_it_removes_something() -> None:
    free = {0: 1, 1: 1}
    older = aggregate([node(0, run("night", WHOLE, step(3, (0, 1)))), node(1, run("night"))])
    command = "make room: cloudrl checkpoints prune --cluster lab --keep-last 1"
    assert waits_for_room(JOB, older, free, BOTH, "lab").endswith(command)
    alone = aggregate([node(0, run("night", WHOLE)), node(1, run("night"))])
    assert waits_for_room(JOB, alone, free, BOTH, "lab").endswith("; make room there")


def test_it_does_not_wait_for_what_is_unknown_or_after_another_end() -> None:
    other = replace(JOB, attempts=(replace(ATTEMPT, signature="ValueError: N"),))

    assert not waits_for_room(JOB, INVENTORY, {0: 0, 1: SAVE_BYTES}, BOTH, "lab")
    assert not waits_for_room(JOB, aggregate([node(0), node(1)]), {0: 1, 1: 1}, BOTH, "lab"), "nothing was saved before"
    assert not waits_for_room(other, INVENTORY, {0: 1, 1: 1}, BOTH, "lab")
    assert not waits_for_room(replace(JOB, attempts=()), INVENTORY, {0: 1, 1: 1}, BOTH, "lab")
