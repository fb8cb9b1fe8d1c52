"""Clusters that end by themselves to save money: all ranks alike, with a line that says why, and exit status 0."""

import json
import os
import signal
import time

import pytest
from node_harness import Maker, Node, Nodes, Scenarios, until

pytestmark = pytest.mark.agents

scenario = Scenarios()


def _jobs(cluster: Nodes, *statuses: str) -> None:
    part = cluster.control / "jobs.part"
    part.write_text(json.dumps([{"status": status} for status in statuses]))
    part.replace(cluster.control / "jobs")


def _down(cluster: Nodes) -> str:
    """Wait until all have ended by themselves; returns why, as all say."""
    assert cluster.exit_codes() == [0] * len(cluster.started), cluster.texts()
    [reason] = {node.failure().reason for node in cluster.started.values()}
    for node in cluster.started.values():
        assert node.text().count(f"\nCLOUDRL DOWN: {reason}\n") == 1, cluster.texts()
        assert "CLOUDRL FAILED" not in node.text()
        assert (node.outcome()["reason"], node.failure().kind) == (reason, "down")
    assert cluster.processes() == {}
    return reason


def _stays_up(node: Node, seconds: float) -> None:
    since = time.monotonic()
    until(lambda: time.monotonic() - since > seconds or node.process.poll() is not None, "some time")
    assert node.phase() == "ready"


@scenario
def without_a_job_all_ranks_end(nodes: Maker) -> None:
    assert _down(nodes(2).start("--down-when-idle-s=2")) == "idle for 2s"


@scenario
def whoever_reads_the_status_reads_no_failure(nodes: Maker) -> None:
    """A job of Slurm has ended well when its cluster was idle for long enough."""
    assert _down(nodes(2).start("--down-when-idle-s=2", CLOUDRL_RETRY_STATUS="75")) == "idle for 2s"


@scenario
def a_rank_that_is_silent_just_then_is_told_when_it_is_back(nodes: Maker) -> None:
    """It would find no head and exit with 1, and dstack would start the run again, whose head is done."""
    cluster = nodes(2).start("--down-when-idle-s=3").ready()
    os.kill(cluster[1].pid, signal.SIGSTOP)
    until(lambda: cluster[0].process.poll() is not None or cluster[0].phase() == "ended", "the head ends it")
    time.sleep(5)
    os.kill(cluster[1].pid, signal.SIGCONT)
    assert _down(cluster) == "idle for 3s"


@scenario
def a_job_keeps_it_up_and_its_end_starts_the_clock(nodes: Maker) -> None:
    cluster = nodes(1)
    _jobs(cluster, "SUCCEEDED", "RUNNING")
    cluster.start("--down-when-idle-s=5").ready()
    until(lambda: cluster[0].status()["budget"]["idle_s"] is not None, "it is counted")
    _stays_up(cluster[0], 6)
    assert cluster[0].status()["budget"]["idle_s"] < 5
    _jobs(cluster, "SUCCEEDED", "SUCCEEDED")
    assert _down(cluster) == "idle for 5s"


@scenario
def a_driver_in_the_background_keeps_it_up(nodes: Maker) -> None:
    """The submission that has started it has ended."""
    cluster = nodes(1)
    _jobs(cluster, "SUCCEEDED")
    actors = cluster.control / "actors"
    actors.write_text(json.dumps([{"is_detached": False, "required_resources": {"GPU": 1.0}}]))
    cluster.start("--down-when-idle-s=1").ready()
    _stays_up(cluster[0], 2.5)
    actors.unlink()
    assert _down(cluster) == "idle for 1s"


@scenario
def what_it_may_cost_ends_it_with_a_job_running(nodes: Maker) -> None:
    cluster = nodes(2)
    _jobs(cluster, "RUNNING")
    cluster.start("--max-cost=0.2", "--price-per-hour=360")
    reason = _down(cluster)
    assert reason.startswith("cost $0.")
    assert reason.endswith(" of $0.20")


@scenario
def it_ends_also_while_it_starts(nodes: Maker) -> None:
    cluster = nodes(2)
    cluster.start("--max-cost=0.1", "--price-per-hour=360", ranks=range(1))
    assert _down(cluster).startswith("cost $0.")


@scenario
def what_earlier_attempts_have_cost_counts_whoever_remembers(nodes: Maker) -> None:
    """Rank 0 may be on a new machine after a loss: the others tell it."""
    cluster = nodes(2)
    words = ["--max-cost=2000", "--price-per-hour=3600"]
    cluster.start_one(0, *words)
    other = cluster.folder / "other-disk"
    record = other / ".cloudrl" / "cost" / f"{cluster.run_id}.json"
    record.parent.mkdir(parents=True)
    record.write_text('{"cost_before": 2500.0}')
    cluster.start_one(1, *words, f"--checkpoints={other}")
    assert _down(cluster).startswith("cost $2,50")
    kept = json.loads((cluster.checkpoints / ".cloudrl" / "cost" / f"{cluster.run_id}.json").read_text())
    assert kept["cost_before"] >= 2500


@scenario
def what_it_costs_is_in_the_status(nodes: Maker) -> None:
    cluster = nodes(1).start("--max-cost=1000", "--price-per-hour=36", "--down-when-idle-s=3600").ready()
    money = cluster[0].status()["budget"]
    assert (money["price_per_hour"], money["max_cost"], money["down_when_idle_s"]) == (36, 1000, 3600)
    assert 0 < money["cost"] < 1
    assert 0 <= money["idle_s"] < 60


@scenario
def a_limit_without_a_price_is_refused(nodes: Maker) -> None:
    node = nodes(1).start_one(0, "--max-cost=5")
    assert node.exit_code() == 0, "dstack would start it again"
    assert "CLOUDRL FAILED: --max-cost needs --price-per-hour" in node.text()


test_scenario = scenario.test()
