"""A node or its Ray is lost: it is named, and all others end with a clear line."""

import os
import signal

import pytest
from node_harness import Maker, Node, Nodes, Scenarios, until
from patience import SLOWER

pytestmark = pytest.mark.agents

scenario = Scenarios()


def _kill(node: Node) -> None:
    node.process.kill()
    node.process.wait(10 * SLOWER)


def _await_rays(cluster: Nodes) -> None:
    """As rank 0 sees them."""
    phases = ["ray"] * cluster.count
    until(
        lambda: cluster[0].phase() and [each["phase"] for each in cluster[0].status()["nodes"]] == phases,
        "all wait for Ray",
    )


@scenario
def a_worker_that_dies_before_the_barrier_is_named(nodes: Maker) -> None:
    """Rank 0 waits for its own Ray meanwhile, rank 2 for that of rank 0."""
    cluster = nodes(3)
    (cluster.control / "hold-0").touch()
    _await_rays(cluster.start())
    _kill(cluster[1])
    assert cluster.exit_codes() == [1, -signal.SIGKILL, 1]
    for rank in (0, 2):
        reason = cluster[rank].reason()
        assert reason.startswith("rank 1 (")
        assert ") was lost in phase ray: no heartbeat for " in reason
        assert reason.endswith("its agent is gone")
        assert (cluster[rank].failure().kind, cluster[rank].failure().final) == ("lost", False)


@scenario
def a_worker_that_dies_afterwards_ends_the_cluster(nodes: Maker) -> None:
    cluster = nodes(3).start().ready()
    _kill(cluster[2])
    assert cluster.exit_codes() == [1, 1, -signal.SIGKILL]
    for rank in (0, 1):
        assert cluster[rank].reason().startswith("rank 2 (")
        assert "was lost in phase ready" in cluster[rank].reason()
        assert cluster[rank].failure().rank == 2


@scenario
def a_worker_that_only_stands_still_is_lost_too(nodes: Maker) -> None:
    cluster = nodes(2).start("--lost-after-s=6").ready()
    os.kill(cluster[1].pid, signal.SIGSTOP)
    assert cluster[0].exit_code() == 1
    assert "no heartbeat for " in cluster[0].reason()
    assert "agent is gone" not in cluster[0].reason()
    os.kill(cluster[1].pid, signal.SIGCONT)
    assert cluster[1].exit_code() == 1


@scenario.each(("ray",), ("ready",))
def a_worker_ends_with_the_head(nodes: Maker, phase: str) -> None:
    cluster = nodes(2)
    if phase == "ray":
        (cluster.control / "hold-0").touch()
        _await_rays(cluster.start())
    else:
        cluster.start().ready()
    _kill(cluster[0])
    assert cluster[1].exit_code() == 1
    assert cluster[1].reason().startswith("the head (rank 0, 127.0.0.1) was lost: its agent is gone")


@scenario
def the_end_of_ray_ends_the_cluster(nodes: Maker) -> None:
    cluster = nodes(2).start().ready()
    cluster[1].end_ray()
    assert cluster.failed() == "rank 1, ray: Ray's processes on rank 1 ended (status -9)"


@scenario
def who_asks_for_it_reads_in_the_status_that_another_try_is_worth_it(nodes: Maker) -> None:
    """A script for Slurm lets the job start again, and does not for what fails before READY."""
    cluster = nodes(1).start(CLOUDRL_RETRY_STATUS="75").ready()
    cluster[0].end_ray()
    assert cluster.failed(75) == "rank 0, ray: Ray's processes on rank 0 ended (status -9)"
    cluster.start("--gpus-per-node=9", CLOUDRL_RETRY_STATUS="75").failed(4)
    assert cluster.start_one(0, "--no-such-option=1", CLOUDRL_RETRY_STATUS="75").exit_code() == 4


@scenario
def the_end_of_ray_before_the_barrier(nodes: Maker) -> None:
    """Rank 1 has its Ray and waits for rank 2: nothing of rank 0 would ever tell that rank 1 cannot work any more."""
    cluster = nodes(3)
    (cluster.control / "hold-2").touch()
    cluster.start()
    until(lambda: cluster[1].phase() == "barrier", "rank 1 is at the barrier")
    cluster[1].end_ray()
    assert cluster.failed() == "rank 1, ray: Ray's processes on rank 1 ended (status -9)"


@scenario
def a_ray_that_starts_at_the_second_try(nodes: Maker) -> None:
    cluster = nodes(1)
    (cluster.control / "fail-0").write_text("1")
    cluster.start().ready()
    assert "`ray start` exited with 1; 2 more tries" in cluster[0].text()


@scenario
def a_ray_whose_dashboard_answers_before_its_start_fails(nodes: Maker) -> None:
    """As on a busy machine, where the node is not in Ray's table after 30 s."""
    cluster = nodes(1)
    (cluster.control / "fail-late").write_text("1")
    cluster.start().ready()
    assert "`ray start` exited with 1; 2 more tries" in cluster[0].text()


@scenario
def a_worker_that_cannot_join_before_the_head_is_up(nodes: Maker) -> None:
    """As on a busy machine: the control store answers, and Ray finds no node of the head."""
    cluster = nodes(2)
    (cluster.control / "fail-late").write_text("1")
    (cluster.control / "fail-1").write_text("2")
    cluster.start().ready()


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
    assert cluster.start().failed() == "rank 0, ray: `ray start` exited with 1"
    for node in cluster.started.values():
        assert "ray start: something is not right yet" in node.text()
    assert len((cluster.control / "starts-0").read_text().splitlines()) == 3


test_scenario = scenario.test()
