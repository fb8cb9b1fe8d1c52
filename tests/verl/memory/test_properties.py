"""What holds for any job: more GPUs, shorter answers and smaller batches never need more of a GPU."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_truth import estimate_of, model_named

from cloudrl.verl.memory.amount import Phase
from cloudrl.verl.memory.verdict import Estimate, Verdict

MODELS = ("qwen2.5-0.5b", "qwen2.5-7b", "qwen3-30b-a3b", "qwen2.5-72b")
JOBS = st.fixed_dictionaries({
    "gpus": st.sampled_from((1, 2, 8)), "nodes": st.sampled_from((1, 2, 4)), "micro": st.sampled_from((1, 4, 16)),
    "response": st.sampled_from((512, 4096)), "mean": st.sampled_from((300, 900)), "dyn": st.booleans(),
    "param_offload": st.booleans(), "optim_offload": st.booleans(), "critic": st.booleans(), "fused": st.booleans(),
    "gc": st.booleans(), "entropy": st.booleans(), "lora": st.sampled_from((0, 32)), "tp": st.sampled_from((1, 2)),
    "engine": st.sampled_from(("fsdp", "fsdp2", "megatron")),
})  # fmt: skip
NAMES = st.sampled_from(MODELS)
GPU = ("load", "rollout", "log-probs", "update", "save")


def estimate(name: str, job: dict[str, Any]) -> Estimate:
    return estimate_of(model_named(name), job)[0]


def needs(found: Estimate) -> dict[tuple[str, str], Phase]:
    return {(phase.group, phase.moment): phase for phase in found.phases if phase.group in GPU}


def never_more(before: Estimate, after: Estimate) -> None:
    first, second = needs(before), needs(after)
    for moment in first.keys() & second.keys():
        assert second[moment].need.likely <= first[moment].need.likely * 1.0001, moment


@given(NAMES, JOBS)
@settings(max_examples=40, deadline=None)
def test_amounts_are_ordered(name: str, job: dict[str, Any]) -> None:
    for phase in estimate(name, job).phases:
        assert 0 <= phase.need.low <= phase.need.likely <= phase.need.high, phase


@given(NAMES, JOBS, st.sampled_from([{"micro": 1}, {"fused": True}, {"gc": True}, {"response": 512}, {"lora": 0}]))
@settings(max_examples=60, deadline=None)
def test_less_work_at_once_never_needs_more(name: str, job: dict[str, Any], change: dict[str, Any]) -> None:
    if "lora" in change:
        never_more(estimate(name, {**job, "optim_offload": False}), estimate(name, {**job, "optim_offload": True}))
    elif "gc" in change or "fused" in change:
        peaks = [estimate(name, {**job, **each}).trainer_peak_gib[1] for each in ({next(iter(change)): False}, change)]
        assert peaks[1] <= peaks[0] * 1.05 + 1.0
    else:
        never_more(estimate(name, job), estimate(name, {**job, **change}))


@given(NAMES, JOBS)
@settings(max_examples=40, deadline=None)
def test_more_nodes_never_need_more_of_a_gpu(name: str, job: dict[str, Any]) -> None:
    never_more(estimate(name, job), estimate(name, {**job, "nodes": 2 * job["nodes"]}))


@given(NAMES, JOBS, st.floats(16, 80))
@settings(max_examples=40, deadline=None)
def test_a_larger_gpu_never_has_less_room(name: str, job: dict[str, Any], gib: float) -> None:
    order = [Verdict.DOES_NOT_FIT, Verdict.TIGHT, Verdict.FITS]
    small, large = (estimate(name, {**job, "gpu_gib": each, "util": 0.3}) for each in (gib, 3 * gib))
    assert order.index(small.verdict) <= order.index(large.verdict)


@pytest.mark.parametrize("name", MODELS)
def test_an_estimate_takes_no_time_that_a_user_feels(name: str) -> None:
    found = estimate(name, {"gpus": 8})
    assert len(found.phases) < 20  # so many sums, and no search
