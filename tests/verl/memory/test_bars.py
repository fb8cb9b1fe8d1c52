"""The verdict as a person sees it."""

import pytest
from memory_truth import estimate_of, model_named

from cloudrl.verl.memory.bars import Bar, draw
from cloudrl.verl.memory.cards import Card
from cloudrl.verl.memory.remedies import find_remedy
from cloudrl.verl.memory.report import MemoryReport

SMALL_CARD = {"gpus": 4, "gpu_gib": 23.6, "prompt": 512, "response": 512, "micro": 1, "util": 0.4, "tp": 2}


def report(**changes: object) -> MemoryReport:
    estimate, setting = estimate_of(model_named("qwen2.5-7b"), {**SMALL_CARD, **changes})
    assert setting is not None
    remedy = None if estimate.likely_fits else find_remedy(setting, estimate)
    return MemoryReport(estimate, Card("RTX4090", 23.6), remedy, ("a note",))


def test_likely_worst_case_and_limit() -> None:
    [line, legend] = draw([Bar("update", 5, 10, 10, "5 of 10")], 80, is_unicode=False)
    assert line.count("#") == 19
    assert line.count("-") == 19
    assert line.endswith("5 of 10")
    assert line.index("|") == line.rindex("-") + 1
    assert legend.split() == ["#", "likely", "-", "worst", "case", "|", "limit"]


@pytest.mark.parametrize("width", [40, 80, 100, 200])
@pytest.mark.parametrize("is_unicode", [False, True])
def test_bars_fit_the_width_and_start_in_one_column(width: int, is_unicode: bool) -> None:
    lines = report().shown(width, is_unicode=is_unicode)
    marks = ("█", "#")
    bars = [line for line in lines if any(mark in line for mark in marks)][:-1]
    assert len(bars) == 5
    assert len({min(line.find(mark) for mark in marks if mark in line) for line in bars}) == 1
    assert max(map(len, bars)) <= max(width, 52)
    assert is_unicode or all(line.isascii() for line in lines)


def test_a_job_that_does_not_fit() -> None:
    found = report()
    assert found.shown(100)[-1].startswith("memory: does not fit: update (optimizer step)")
    assert "needs 36 of 21 GiB" in found.warning
    assert "offload_policy=True" in found.warning
    assert "(then a node needs" in found.warning


def test_a_job_that_fits() -> None:
    found = report(gpus=8, gpu_gib=79.1)
    assert found.warning == ""
    assert found.shown(100)[-1] == "memory: fits"
    assert found.to_json()["overrides"] == {}


def test_a_job_whose_lengths_decide() -> None:
    found = report(gpus=8, gpu_gib=79.1, response=8192, micro=16, rmpad=True)
    assert found.longest_mean is not None
    assert f"up to a mean of {found.longest_mean} tokens" in found.shown(100)[-1]
