"""What hangs before the barrier: no cluster waits for ever, and the rank and its phase are named."""

import time

import pytest
from node_harness import IP, Maker, Scenarios, until

pytestmark = pytest.mark.agents

scenario = Scenarios()


@scenario
def a_set_up_command_that_hangs_on_one_rank(nodes: Maker) -> None:
    command = "echo this far; test $CLOUDRL_NODE_RANK = 0 || sleep 600"
    cluster = nodes(2).start("--setup=true", f"--setup={command}", "--setup-timeout-s=4")
    reason = f"rank 1, setup: `{command}` has not finished; all set-up commands together may take 4 s"
    assert cluster.failed() == reason
    for node in cluster.started.values():
        assert "the last lines of its log:\nthis far\n" in node.text()
        assert node.failure().permanent is True


@scenario.each((0,), (1,))
def a_ray_that_does_not_come_up(nodes: Maker, rank: int) -> None:
    cluster = nodes(2)
    (cluster.control / f"hold-{rank}").touch()
    cluster.start_one(rank, "--ray-timeout-s=3")
    cluster.start_one(1 - rank)
    assert cluster.failed() == f"rank {rank}, ray: Ray is not up 3 s after `ray start`"


@scenario
def an_import_that_hangs(nodes: Maker) -> None:
    cluster = nodes(1)
    env = {"GATE": str(cluster.folder / "gate")}
    cluster.start_one(0, "--import-check=json,gate", "--ray-timeout-s=10", **env)
    reason = "the image is broken: json, gate cannot be imported within 10 s"
    assert cluster.failed() == f"rank 0, preflight: {reason}"


@scenario
def a_worker_that_beats_and_does_nothing_else(nodes: Maker) -> None:
    """As one whose main thread waits for a dead file server; here it just has more time than rank 0 gives it."""
    cluster = nodes(2)
    cluster.start_one(0, "--setup-timeout-s=1", "--lost-after-s=6")
    cluster.start_one(1, "--setup=sleep 600")
    reason = cluster.failed()
    assert reason.startswith("rank 1, join: rank 1 (")
    assert f", {IP}) hangs in phase setup (sleep 600): " in reason
    assert reason.endswith(" s, and the limit is 1 s")


@scenario
def a_head_that_beats_and_does_nothing_else(nodes: Maker) -> None:
    cluster = nodes(2)
    cluster.start_one(0, "--setup=sleep 600")
    cluster.start_one(1, "--setup-timeout-s=1", "--lost-after-s=6")
    assert cluster.failed().startswith(f"rank 0, join: rank 0 ({IP}) hangs in phase setup: ")


@scenario
def a_set_up_of_the_head_that_outlasts_the_joining(nodes: Maker) -> None:
    """Rank 0 answers all the time: only one that never did would be missing."""
    cluster = nodes(2)
    gate = cluster.folder / "gate"
    cluster.start_one(0, f"--setup=while ! test -e {gate}; do sleep 0.05; done")
    until(lambda: cluster[0].phase() == "setup", "rank 0 is at its set-up")
    cluster.start_one(1, "--join-timeout-s=1")
    cluster[1].await_detail("waiting for rank 0 to finish its set-up and preflight")
    since = cluster[1].status()["started_at"]
    until(lambda: time.time() > since + 2.5, "more than the time for joining has passed")
    gate.touch()
    cluster.ready()


test_scenario = scenario.test()
