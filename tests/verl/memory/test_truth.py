"""The estimate of memory against runs that somebody published."""

from __future__ import annotations

import statistics

import pytest
from memory_truth import Row, rows

from cloudrl.verl.memory.host import NODE_MEMORY
from cloudrl.verl.memory.remedies import applied, find_remedy
from cloudrl.verl.memory.verdict import Verdict
from cloudrl.verl.memory.workload import workload_of
from cloudrl.verl.rules import problems

LABELLED = [row for row in rows() if row.seen]
SURE_RIGHT, MEDIAN_ERROR, LIKELY_RIGHT = 0.95, 0.05, 0.85


def is_right(row: Row) -> bool:
    """Whether a sure answer is what was seen."""
    return row.estimate.verdict is (Verdict.FITS if row.seen == "fits" else Verdict.DOES_NOT_FIT)


@pytest.mark.parametrize("row", [row for row in rows() if row.is_minimum], ids=lambda row: row.name)
def test_no_published_minimum_does_not_fit(row: Row) -> None:
    assert row.estimate.verdict is not Verdict.DOES_NOT_FIT
    assert row.estimate.likely_fits


def test_sure_answers_are_right() -> None:
    sure = [row for row in LABELLED if row.estimate.verdict is not Verdict.TIGHT]
    wrong = [row.name for row in sure if not is_right(row)]
    assert len(sure) >= 30, "an estimate that is never sure helps no one"
    assert len(wrong) <= (1 - SURE_RIGHT) * len(sure), wrong


def test_likely_answers_are_mostly_right() -> None:
    wrong = [row.name for row in LABELLED if row.estimate.likely_fits is not (row.seen == "fits")]
    assert len(wrong) <= (1 - LIKELY_RIGHT) * len(LABELLED), wrong


def test_the_peak_of_the_trainer_is_near_what_was_printed() -> None:
    errors = {
        row.name: row.estimate.trainer_peak_gib[1] / row.figures["allocated"] - 1
        for row in rows()
        if "allocated" in row.figures
    }
    assert len(errors) >= 10
    assert statistics.median(map(abs, errors.values())) < MEDIAN_ERROR, errors
    assert max(map(abs, errors.values())) < 0.15, errors


def test_weights_after_loading_are_near_what_was_printed() -> None:
    for row in rows():
        if "after_fsdp" in row.figures:
            load = next(phase for phase in row.estimate.phases if phase.group == "load")
            weights = next(term.amount for term in load.terms if term.what == "weights")
            assert weights.likely == pytest.approx(row.figures["after_fsdp"], rel=0.02), row.name


@pytest.mark.parametrize("row", [row for row in rows() if "host" in row.figures], ids=lambda row: row.name)
def test_host_memory_is_of_the_right_size(row: Row) -> None:
    [host] = [phase for phase in row.estimate.phases if phase.moment == NODE_MEMORY]
    assert host.need.likely == pytest.approx(row.figures["host"], rel=0.4)


def failing() -> list[Row]:
    """Rows that do not fit by what their configuration says, which leaves out an engine without flash attention."""
    return [
        row
        for row in rows()
        if row.setting is not None
        and not row.estimate.likely_fits
        and not row.estimate.work.actor.lacks_flash_attention
    ]


@pytest.mark.parametrize("row", failing(), ids=lambda row: row.name)
def test_what_is_suggested_makes_it_fit(row: Row) -> None:
    assert row.setting is not None
    remedy = find_remedy(row.setting, row.estimate)
    assert remedy is not None
    assert remedy.words
    assert remedy.estimate.likely_fits
    setting = applied(row.setting, remedy.overrides)
    if not remedy.options:
        assert workload_of(setting, row.estimate.work.lengths) == remedy.estimate.work
    assert len(problems(remedy.setting)) <= len(problems(row.setting))


def test_a_length_is_named_up_to_which_it_fits() -> None:
    [row] = [row for row in rows() if row.name == "9b-qwen3.5-16h800-dyn"]
    limit = row.estimate.longest_mean()
    assert limit is not None
    assert row.estimate.with_mean(limit - 1).likely_fits
    assert not row.estimate.with_mean(limit + 50).likely_fits
