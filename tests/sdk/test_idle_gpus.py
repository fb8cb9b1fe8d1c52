"""When GPUs that do nothing are worth a warning."""

import pytest

from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.report import BudgetStatus, GpuUsage, NodeReport, Usage
from cloudrl.providers.model import Status
from cloudrl.sdk.idle_gpus import idle_gpus

NOW = 10_000.0


def node(rank: int, *idle_s: float | None) -> NodeReport:
    """With a GPU for each value: seconds without work, None while it works."""
    gpus = tuple(GpuUsage(index, idle_since=None if each is None else NOW - each) for index, each in enumerate(idle_s))
    return NodeReport(rank, f"10.0.0.{rank}", phase=Phase.READY, usage=Usage(NOW, gpus=gpus))


def cluster(*nodes: NodeReport, price: float | None = None, working_s: float | None = None) -> Status:
    budget = BudgetStatus(working_since=None if working_s is None else NOW - working_s)
    return Status(ClusterFacts("lab", "", "dstack", 2), Phase.READY, nodes=nodes, price_per_hour=price, budget=budget)


def test_a_job_runs_and_some_do_nothing() -> None:
    warning = idle_gpus(cluster(node(0, None, 400.0), node(1, 900.0, 600.0), working_s=3600))
    assert warning.text == "3 of 4 GPUs have computed nothing for 6 min 40 s or more (rank 0: 1; rank 1: 0-1)"
    assert warning.hint == "See what the job does: cloudrl watch --cluster dstack/lab"


def test_nothing_runs_and_they_are_paid_for() -> None:
    warning = idle_gpus(cluster(node(0, 3600.0), price=49.2))
    assert (
        warning.text
        == "1 of 1 GPUs have computed nothing for 1 h 00 min or more (rank 0: 0), and the cluster costs $49.20/h"
    )
    assert warning.hint.endswith("cloudrl down dstack/lab")


@pytest.mark.parametrize("some", [False, True])
def test_many_that_do_nothing_are_three_lines(some: bool) -> None:
    nodes = [node(rank, *[None if some and rank % 3 else 3600.0] * 8) for rank in range(256)]
    text = idle_gpus(cluster(*nodes, price=49.2)).text
    assert len(text) < 400
    assert ("ranks 0, 3, 6, " in text) if some else ("(ranks 0-255: 0-7)" in text)


def test_many_that_differ_are_counted() -> None:
    nodes = [node(rank, *(3600.0 if rank >> bit & 1 else None for bit in range(8))) for rank in range(1, 256)]
    text = idle_gpus(cluster(*nodes, price=49.2)).text
    assert "(rank 1: 0; rank 2: 1; rank 3: 0-1; " in text
    assert " more), and the cluster costs" in text
    assert len(text) < 400


@pytest.mark.parametrize(
    "status",
    [
        cluster(node(0, 299.0), working_s=3600),
        cluster(node(0, 3600.0), working_s=200),
        cluster(node(0, 3600.0)),
        cluster(node(0, None), price=49.2),
        cluster(node(0), price=49.2),
        cluster(NodeReport(0, "10.0.0.1"), price=49.2),
        cluster(price=49.2),
    ],
    ids=[
        "not yet",
        "the job has just begun",
        "nothing runs and it is free",
        "it works",
        "no GPUs",
        "silent",
        "no nodes",
    ],
)
def test_no_warning(status: Status) -> None:
    assert idle_gpus(status) is None
