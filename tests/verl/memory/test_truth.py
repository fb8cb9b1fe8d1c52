"""The estimate of memory against runs that somebody published."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from memory_truth import Row, estimate_of, model_named, rows

from cloudrl.verl.memory.amount import Phase
from cloudrl.verl.memory.host import NODE_MEMORY
from cloudrl.verl.memory.reading import workload_of
from cloudrl.verl.memory.remedies import find_remedy
from cloudrl.verl.memory.training import Trainer
from cloudrl.verl.memory.verdict import Verdict
from cloudrl.verl.rules import problems
from cloudrl.verl.setting import applied

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
    """Of the releases that cloudrl is for; what older ones did not fit in fits since."""
    recent = [row for row in LABELLED if row.release >= (0, 7)]
    wrong = [row.name for row in recent if row.estimate.likely_fits is not (row.seen == "fits")]
    assert len(recent) >= 30
    assert len(wrong) <= (1 - LIKELY_RIGHT) * len(recent), wrong


MEASURED = [row for row in rows() if "backward" in row.figures]


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: row.name)
def test_each_phase_is_near_what_was_measured(row: Row) -> None:
    estimate = row.estimate
    trainer = Trainer(estimate.model, estimate.model, estimate.work, estimate.machine)
    phases = [*trainer.phases(), trainer.log_probs()]
    found = {
        "load": max(allocated(phase) for phase in phases if phase.group == "load"),
        "optimizer": max(allocated(phase) for phase in phases if phase.moment == "optimizer step"),
        "log_probs": max(allocated(phase) for phase in phases if phase.group == "log-probs"),
        "backward": max(
            allocated(phase) for phase in phases if phase.group == "update" and phase.moment != "optimizer step"
        ),
    }
    errors = {name: gib - row.figures[name] for name, gib in found.items()}
    assert all(abs(error) < max(0.5, 0.06 * row.figures[name]) for name, error in errors.items()), errors


def allocated(phase: Phase) -> float:
    return sum(term.amount.likely for term in phase.terms if term.what != "fragmentation")


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
    assert host.need.likely == pytest.approx(row.figures["host"], rel=0.2)


def host_terms(**job: Any) -> dict[str, float]:
    """GiB of each thing in the memory of a node, of a 7B on eight GPUs."""
    estimate, _ = estimate_of(model_named("qwen2.5-7b"), {"gpus": 8, "ref": False, "verl": "0.9.1", **job})
    [host] = [phase for phase in estimate.phases if phase.moment == NODE_MEMORY]
    return {term.what: term.amount.likely for term in host.terms}


def test_pinned_copies_take_a_power_of_two() -> None:
    """A layer of 233,057,792 parameters in fp32 over 8 GPUs is 111 MiB, and takes 128."""
    layer, rest = 233_057_792, 2 * 152_064 * 3584 + 3584
    sharded = 28 * 2**27 + 2**30  # 519.8 MiB of embeddings, head and norm
    assert 4 * layer / 8 < 2**27
    assert 2**29 < 4 * rest / 8 < 2**30
    offloaded = host_terms(param_offload=True)["offloaded states"]
    assert offloaded == pytest.approx(8 * sharded / 2**30)
    both = host_terms(param_offload=True, optim_offload=True)["offloaded states"]
    assert both == pytest.approx(3 * offloaded), "both moments of Adam, too"


def test_a_save_copies_the_shards_of_fsdp1_alone() -> None:
    assert host_terms()["copies of a save"] == pytest.approx(7.6156e9 * 4 / 2**30, rel=0.001)
    assert "copies of a save" not in host_terms(engine="fsdp2")


def test_processes_that_read_data_count_for_each_gpu() -> None:
    one, eight = (host_terms(sft=True, gpus=gpus, engine="fsdp2")["processes that read data"] for gpus in (1, 8))
    assert eight == pytest.approx(8 * one)


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


def test_actor_and_critic_on_small_gpus_fit_with_what_is_suggested() -> None:
    job = {"gpus": 8, "gpu_gib": 22.0, "critic": True, "c_micro": 4, "micro": 4, "tp": 1, "util": 0.5, "mini": 64}
    estimate, setting = estimate_of(model_named("qwen2.5-7b"), {**job, "verl": "0.9.1"})
    assert setting is not None
    remedy = find_remedy(setting, estimate)
    assert remedy is not None
    assert remedy.estimate.likely_fits
    assert any(key.startswith("critic.") for key in remedy.overrides)


def test_a_length_is_named_up_to_which_it_fits() -> None:
    job = {"gpus": 8, "gpu_gib": 79.1, "prompt": 1024, "response": 16384, "micro": 16, "mini": 256, "n": 5}
    estimate, _ = estimate_of(model_named("qwen2.5-7b"), job)
    limit = estimate.longest_mean()
    assert limit is not None
    assert estimate.with_mean(limit - 1).likely_fits
    assert not estimate.with_mean(limit + 50).likely_fits
