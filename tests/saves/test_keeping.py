"""Which steps stay for good: every N-th, and the best by a metric."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_inventories import node, run, step

from cloudrl.errors import InputError
from cloudrl.protocol.durable_jobs import Attempt, DurableJob, Keeping, Score
from cloudrl.protocol.mirrors import MirroredFile, MirroredSave
from cloudrl.saves.aggregate import aggregate
from cloudrl.saves.keeping import kept_steps, mark_kept, parse_best, score_steps
from cloudrl.saves.mirrored import plan_removal, plan_upload, save_name
from cloudrl.saves.prune import plan_prune

METRIC = "val-core/gsm8k/reward/mean@1"
ATTEMPT = Attempt(1, "job", "cluster", 0, 0.0)


def _job(*, every=0, best="", scores=(), keep=1):
    return DurableJob(
        "job", "night", "", {}, 0.0, world_size=2, keep=keep, keep_every=every, keep_best=best, attempts=(ATTEMPT,),
        scores=tuple(Score(saved, value, at) for saved, value, at in scores), mirror="/m",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "read"),
    [(METRIC, (METRIC, False)), (f"max:{METRIC}", (METRIC, False)), ("min:val/loss", ("val/loss", True))],
)
def test_a_metric_is_read(text, read):
    assert parse_best(text) == read


@pytest.mark.parametrize("text", ["", "min:", "max:", "val core"])
def test_what_names_no_metric_is_refused(text):
    with pytest.raises(InputError, match="names no metric"):
        parse_best(text)


@pytest.mark.parametrize(
    ("job", "kept"),
    [
        (_job(), {}),
        (_job(every=20), {20: "every 20", 40: "every 20"}),
        (_job(best="m", scores=[(10, 0.5, 10), (30, 0.75, 25)]), {30: "best m 0.75 (of step 25)"}),
        (_job(best="min:m", scores=[(10, 0.5, 10), (30, 0.75, 30)]), {10: "lowest m 0.5"}),
        (_job(best="m", scores=[(10, 0.9, 10), (30, 0.9, 30)]), {30: "best m 0.9"}),  # of equal ones the newest
        (_job(best="m", scores=[(10, 0.1, 10), (50, 0.9, 50)]), {10: "best m 0.1"}),  # step 50 is not there
        (_job(every=20, best="m", scores=[(40, 0.9, 40)]), {20: "every 20", 40: "every 20, best m 0.9"}),
        # the best is not whole now: it stays, and so does the best of those that are
        (_job(best="m", scores=[(20, 0.8, 20), (35, 0.9, 35)]), {20: "best m 0.8", 35: "best m 0.9"}),
        (_job(best="m"), {}),
        # what the jobs before it keep
        (
            replace(_job(), kept_before=(Keeping(20), Keeping(0, "m", (Score(30, 0.5, 30),)))),
            {20: "every 20", 40: "every 20", 30: "best m 0.5"},
        ),
        (
            replace(_job(best="m", scores=[(10, 0.5, 10)]), kept_before=(Keeping(0, "min:l", (Score(10, 2, 10),)),)),
            {10: "best m 0.5, lowest l 2"},
        ),
    ],
)
def test_what_stays_and_why(job, kept):
    assert kept_steps(job, [10, 20, 30, 35, 40], [10, 20, 30, 40]) == kept


@pytest.mark.parametrize(
    ("values", "reached", "scored"),
    [
        ({}, 20, []),
        ({10: 0.1, 20: 0.2}, 20, [(10, 0.1, 10), (20, 0.2, 20)]),
        ({10: 0.1, 20: 0.2}, 19, [(10, 0.1, 10)]),  # step 20 is saved, and its line is yet to come
        ({8: 0.1, 9: 0.15, 15: 0.2}, 20, [(10, 0.15, 9), (20, 0.2, 15)]),  # the last one since the save before
        ({5: 0.1}, 20, [(10, 0.1, 5)]),  # step 20 has none since step 10
        ({10: float("nan"), 20: float("inf")}, 20, []),
        ({9: 0.9, 10: float("nan"), 20: 0.5}, 20, [(20, 0.5, 20)]),  # it has diverged at the save itself
        ({7: 0.9, 8: float("-inf"), 15: 0.5}, 20, [(20, 0.5, 15)]),
        ({8: float("nan"), 9: 0.9}, 20, [(10, 0.9, 9)]),  # it has recovered since
    ],
)
def test_a_saved_step_has_the_value_of_its_own_step_or_the_last_one_since_the_save_before(values, reached, scored):
    found = score_steps((), [10, 20], values, reached)

    assert [(score.step, score.value, score.measured_at) for score in found] == scored


def test_scores_that_are_known_stay_though_a_log_is_gone_or_a_step():
    known = (Score(5, 0.9, 5), Score(10, 0.1, 10))

    assert score_steps(known, [10, 20], {20: 0.2}, 20) == (*known, Score(20, 0.2, 20))


def test_of_many_scores_the_best_and_those_of_steps_that_are_there_stay():
    known = tuple(Score(number, 0.5 - abs(number - 7), number) for number in range(1, 900))

    found = {score.step for score in score_steps(known, [3, 899], {}, 0)}

    assert len(found) == 500
    assert {3, 7, 899} <= found


@given(
    st.lists(st.tuples(st.integers(1, 30), st.floats(-5, 5)), max_size=12, unique_by=lambda pair: pair[0]),
    st.integers(0, 7), st.sampled_from(["", "m", "min:m"]), st.integers(1, 3), st.sets(st.integers(1, 30), min_size=1),
)  # fmt: skip
def test_whatever_there_is_no_kept_step_goes_and_the_newest_stays(scores, every, best, keep, steps):
    job = _job(every=every, best=best, scores=[(saved, value, saved) for saved, value in sorted(scores)], keep=keep)
    inventory = aggregate([node(0, run("night", *map(step, sorted(steps))))])

    removed = {removal.step for removal in plan_prune(mark_kept(inventory, job), keep).removals}

    there = [pair for pair in scores if pair[0] in steps]
    best_steps = {max(there, key=lambda pair: _rank(pair, best))[0]} if best and there else set()
    due = {number for number in steps if every and number % every == 0}
    newest = set(sorted(steps)[-keep:])
    assert removed == steps - newest - due - best_steps


def _rank(pair, best):
    return (-pair[1] if best == "min:m" else pair[1]), pair[0]


def test_prune_says_why_a_step_stays():
    inventory = aggregate([node(0, run("night", *map(step, (1, 2, 3, 4))))])
    marked = mark_kept(inventory, _job(every=2))

    pruning = plan_prune(marked, 1)
    assert [removal.step for removal in pruning.removals] == [1, 3]
    assert pruning.notes == ("night: step 2 stays: it is kept for good: every 2",)


def test_runs_of_others_are_not_marked():
    inventory = aggregate([node(0, run("night", step(2)), run("day", step(2)))])

    assert [(one.run, one.kept) for one in mark_kept(inventory, _job(every=2)).checkpoints] == [
        ("day", ""),
        ("night", "every 2"),
    ]


def _save(number):
    file = MirroredFile(f"night/global_step_{number}/data.pt", 1, 1.0, 1)
    return MirroredSave("night", number, save_name(ATTEMPT), (file,), float(number))


def test_a_mirror_keeps_the_same():
    saves = [_save(number) for number in (1, 2, 3, 4, 5)]
    job = _job(every=4, best="m", scores=[(1, 0.1, 1), (2, 0.9, 2), (3, 0.2, 3)])

    assert [save.step for save in plan_removal(job, saves)] == [1, 3]
    assert [save.step for save in plan_removal(replace(job, keep_best=""), saves)] == [1, 2, 3]


def test_a_mirror_gets_a_kept_step_that_was_passed_over_once_it_has_the_newest():
    inventory = aggregate([node(0, run("night", *map(step, (1, 2, 3, 4, 5))))])
    job = _job(every=2)

    def ordered(*there, first=None):
        plan = plan_upload(inventory, job, [_save(number) for number in there], first=first)
        return None if plan is None else plan.step

    assert ordered(1) == 5
    assert ordered(1, 5) == 2
    assert ordered(1, 2, 5, first=4) == 4
    assert ordered(1, 2, 4, 5) is None
