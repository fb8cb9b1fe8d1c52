"""What a step moves between nodes, and the question that follows from it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from memory_truth import estimate_of, model_named

from cloudrl.protocol.facts import ClusterFacts
from cloudrl.sdk.network_question import network_question
from cloudrl.verl.memory.traffic import step_traffic_bytes

MODEL = model_named("qwen2.5-7b")
P = MODEL.counts.total
JOB: dict[str, Any] = {"gpus": 8, "nodes": 2, "micro": 4, "dyn": False}


def traffic(**changes: Any) -> float | None:
    return step_traffic_bytes(estimate_of(MODEL, {**JOB, **changes})[0])


def test_it_grows_with_the_micro_batches_alone() -> None:
    """8 bytes a parameter for each micro-batch of an update, 2 for each of a forward pass, 2 for the rollout."""
    few, many = traffic(micro=4), traffic(micro=1)
    assert few is not None
    assert many is not None
    assert (few / P - 2) * 4 == pytest.approx(many / P - 2)
    assert few / P == pytest.approx(round(few / P))


@pytest.mark.parametrize("changes", [{"nodes": 1}, {"engine": "megatron"}])
def test_nothing_is_said_where_no_weights_cross_nodes(changes: dict[str, Any]) -> None:
    assert traffic(**changes) is None


def test_an_adapter_sums_no_gradients() -> None:
    whole, adapter = traffic(), traffic(lora=32)
    assert whole is not None
    assert adapter is not None
    assert adapter < whole


def facts(**changes: Any) -> ClusterFacts:
    fields = {"gpu_nodes": 2, "unused_network": "rdmap16s27: EFA without a plug-in; NCCL will use TCP", **changes}
    return ClusterFacts("lab", "id", "dstack", 2, **fields)


def asked(cluster: ClusterFacts, **changes: Any) -> str:
    memory = SimpleNamespace(estimate=estimate_of(MODEL, {**JOB, **changes})[0])
    submission: Any = SimpleNamespace(submission_id="grpo-1", memory=memory)
    question = network_question(cluster, submission)
    return question.text if question is not None else ""


def test_the_question_has_the_minutes_a_step_that_it_costs() -> None:
    size = traffic()
    assert size is not None
    slow = asked(facts(link_gb_per_s=size / 1e9 / 600))
    assert slow.startswith("rdmap16s27: EFA without a plug-in; NCCL will use TCP: about 10 min ")
    assert slow.endswith("/s, as measured. Start grpo-1 all the same?")
    assert "at 5.0 GB/s, as is usual for TCP" in asked(facts())


def test_without_an_estimate_it_is_asked_all_the_same() -> None:
    assert asked(facts(), engine="megatron").endswith("NCCL will use TCP. Start grpo-1 all the same?")


@pytest.mark.parametrize("cluster", [facts(unused_network=""), facts(gpu_nodes=1)])
def test_where_it_does_not_matter_nothing_is_asked(cluster: ClusterFacts) -> None:
    assert asked(cluster) == ""
