"""A node or its Ray is lost: it is named, and all others end with a clear line."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from node_harness import Scenarios, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from node_harness import Node, Nodes

    Maker = Callable[[int], Nodes]

pytestmark = pytest.mark.agents

scenario = Scenarios()


def _kill(node: Node) -> None:
    node.process.kill()
    node.process.wait(10)


def _phases(cluster: Nodes) -> list[str]:
    """As rank 0 sees them."""
    return [each["phase"] for each in cluster[0].status()["nodes"]] if cluster[0].phase() else []


def _failure_line(node: Node) -> str:
    [line] = [line for line in node.text().splitlines() if "] failed: " in line]
    return line


@scenario
def a_worker_that_dies_before_the_barrier_is_named(nodes: Maker) -> None:
    """Rank 0 waits for its own Ray meanwhile, rank 2 for that of rank 0."""
    cluster = nodes(3)
    (cluster.control / "hold-0").touch()
    cluster.start()
    until(lambda: _phases(cluster) == ["ray"] * 3, "all wait for Ray")
    _kill(cluster[1])
    assert cluster.exit_codes() == [1, -signal.SIGKILL, 1]
    for rank in (0, 2):
        assert "rank 1 (" in _failure_line(cluster[rank])
        assert ") was lost in phase ray: no heartbeat for " in _failure_line(cluster[rank])
        assert "its agent is gone" in _failure_line(cluster[rank])
    assert cluster[0].outcome()["failure"]["kind"] == "lost"
    assert "CLOUDRL FAILED" not in cluster[0].text()


@scenario
def a_worker_that_dies_afterwards_ends_the_cluster(nodes: Maker) -> None:
    cluster = nodes(3).start().ready()
    _kill(cluster[2])
    assert cluster.exit_codes() == [1, 1, -signal.SIGKILL]
    for rank in (0, 1):
        assert "rank 2 (" in _failure_line(cluster[rank])
        assert "was lost in phase " in _failure_line(cluster[rank])
        assert cluster[rank].outcome()["failure"]["rank"] == 2


@scenario
def a_worker_that_only_stands_still_is_lost_too(nodes: Maker) -> None:
    cluster = nodes(2).start("--lost-after-s=6").ready()
    os.kill(cluster[1].pid, signal.SIGSTOP)
    assert cluster[0].exit_code() == 1
    assert "no heartbeat for " in _failure_line(cluster[0])
    assert "agent is gone" not in _failure_line(cluster[0])
    os.kill(cluster[1].pid, signal.SIGCONT)
    assert cluster[1].exit_code() == 1


@scenario
def a_worker_ends_with_the_head(nodes: Maker) -> None:
    cluster = nodes(2).start().ready()
    _kill(cluster[0])
    assert cluster[1].exit_code() == 1
    assert "the head (rank 0, 127.0.0.1) was lost: its agent is gone" in _failure_line(cluster[1])


@scenario
def a_worker_ends_with_a_head_that_dies_before_the_barrier(nodes: Maker) -> None:
    cluster = nodes(2)
    (cluster.control / "hold-0").touch()
    cluster.start()
    until(lambda: _phases(cluster) == ["ray"] * 2, "both wait for Ray")
    _kill(cluster[0])
    assert cluster[1].exit_code() == 1
    assert "the head (rank 0, 127.0.0.1) was lost: its agent is gone" in _failure_line(cluster[1])


@scenario
def the_end_of_ray_ends_the_cluster(nodes: Maker) -> None:
    cluster = nodes(2).start().ready()
    [ray] = cluster[1].rays()
    os.kill(ray, signal.SIGKILL)
    assert cluster.exit_codes() == [1, 1]
    for node in cluster.started.values():
        assert "rank 1, ray: Ray's processes on rank 1 ended (status -9)" in _failure_line(node)


@scenario
def the_end_of_ray_before_the_barrier(nodes: Maker) -> None:
    """Rank 1 has its Ray and waits for rank 2: nothing of rank 0 would ever tell that rank 1 cannot work any more."""
    cluster = nodes(3)
    (cluster.control / "hold-2").touch()
    cluster.start()
    until(lambda: cluster[1].phase() == "barrier", "rank 1 is at the barrier")
    [ray] = cluster[1].rays()
    os.kill(ray, signal.SIGKILL)
    assert cluster.exit_codes() == [1, 1, 1]
    for node in cluster.started.values():
        assert "rank 1, ray: Ray's processes on rank 1 ended (status -9)" in _failure_line(node)


@scenario
def a_ray_that_starts_at_the_second_try(nodes: Maker) -> None:
    cluster = nodes(1)
    (cluster.control / "fail-0").write_text("1")
    cluster.start().ready()
    assert "`ray start` exited with 1; 2 more tries" in cluster[0].text()


@scenario
def a_control_store_that_outlives_a_start(nodes: Maker) -> None:
    """As Ray's does when its dashboard does not come up: the next start would find its port taken."""
    cluster = nodes(1)
    (cluster.control / "fail-0").write_text("2")
    (cluster.control / "leave-0").touch()
    cluster.start("--data=addition").ready()
    assert "`ray start` exited with 1; 1 more tries" in cluster[0].text()


@scenario
def a_ray_that_never_starts(nodes: Maker) -> None:
    cluster = nodes(2)
    (cluster.control / "fail-0").write_text("9")
    cluster.start()
    assert cluster.exit_codes() == [1, 1]
    for node in cluster.started.values():
        assert "rank 0, ray: `ray start` exited with 1" in _failure_line(node)
        assert "ray start: something is not right yet" in node.text()
    assert len((cluster.control / "starts-0").read_text().splitlines()) == 3


@pytest.mark.parametrize("name", scenario.all)
def test_scenario(name: str, outcomes: dict[str, Future[None]]) -> None:
    outcomes[name].result(120)
