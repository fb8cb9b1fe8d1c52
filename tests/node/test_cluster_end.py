"""Whoever ends an agent, by a signal or by dying as its starter: everything goes with it, within seconds."""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Sequence

import pytest
from node_harness import Maker, Nodes, Scenarios, until
from patience import SLOWER

from cloudrl.logs.archive import Archive, FolderArchive

pytestmark = pytest.mark.agents

scenario = Scenarios()

GATE = "while ! test -e $GATE; do sleep 0.05; done"
DIED = "the command that started this cluster has died"


def _hold(cluster: Nodes, phase: str) -> tuple[Sequence[str], dict[str, str]]:
    """Options and variables with which an agent does not get beyond a phase."""
    env = {"GATE": str(cluster.folder / "gate")}
    if phase == "setup":
        return [f"--setup={GATE}"], env
    if phase == "ray":
        (cluster.control / "hold-0").touch()
    if phase == "fetch":
        return ["--import-check=gate"], env
    return [], env


def _ends(cluster: Nodes, end: Callable[[], object], reason: str, code: int) -> None:
    """Rank 0 ends, with all that it has started; dstack kills 10 seconds after its signal."""
    before = time.monotonic()
    end()
    assert cluster[0].exit_code() == code
    assert time.monotonic() - before < 10 * SLOWER
    assert reason in cluster[0].text()
    assert cluster[0].outcome() == {**cluster[0].outcome(), "reason": reason, "failure": None}
    assert cluster.processes() == {}


@scenario.each(("setup",), ("ray",), ("fetch",), ("barrier",), ("ready",))
def the_starter_dies(nodes: Maker, phase: str) -> None:
    cluster = nodes(2 if phase == "barrier" else 1)
    options, env = _hold(cluster, phase)
    node = cluster.start_one(0, *options, lease=True, **env)
    until(lambda: node.phase() == phase, f"phase {phase}")
    _ends(cluster, node.drop_lease, DIED, 1)


@scenario
def the_starter_was_dead_before_the_agent_looked(nodes: Maker) -> None:
    cluster = nodes(1)
    _ends(cluster, cluster.start_one(0, lease=True).drop_lease, DIED, 1)


@scenario
def a_cluster_that_is_released_lives_on(nodes: Maker) -> None:
    cluster = nodes(1)
    node = cluster.start_one(0, lease=True)
    cluster.ready()
    node.drop_lease(b"detach")
    until(lambda: not os.path.exists(f"/proc/{node.pid}/fd/{_lease_fd(node.pid)}"), "it has let go of the lease")
    assert node.phase() == "ready"


def _lease_fd(pid: int) -> int:
    with open(f"/proc/{pid}/cmdline") as file:
        return next(int(word.partition("=")[2]) for word in file.read().split("\0") if word.startswith("--lease-fd"))


@scenario.each(("SIGINT", "setup", 130), ("SIGTERM", "ray", 143), ("SIGTERM", "fetch", 143), ("SIGHUP", "ready", 129))
def signals(nodes: Maker, name: str, phase: str, code: int) -> None:
    """SIGHUP is what a closed terminal sends."""
    cluster = nodes(1)
    options, env = _hold(cluster, phase)
    node = cluster.start_one(0, *options, **env)
    until(lambda: node.phase() == phase, f"phase {phase}")
    _ends(cluster, lambda: os.kill(node.pid, signal.Signals[name]), f"ended by {name}", code)


@scenario
def the_logs_and_the_state_of_jobs_are_kept(nodes: Maker) -> None:
    """Ray's own folder goes with the cluster; the nodes share a volume."""
    cluster = nodes(2)
    job = {"submission_id": "job1", "job_id": "01000000", "status": "RUNNING"}
    rows = {"jobs": [job], "nodes": [{"node_id": "0head"}], "tasks": [{"error_type": "WORKER_DIED"}]}
    for name, value in rows.items():
        (cluster.control / name).write_text(json.dumps(value))
    cluster.start(SOME_TOKEN="a-secret-of-the-node").ready()
    [session] = cluster[0].temp_dir.glob("session_*")
    worker_logs = cluster[1].temp_dir / session.name / "logs"
    worker_logs.mkdir(parents=True)
    (worker_logs / "raylet.out").write_text("with a-secret-of-the-node\nno end")
    cluster[0].process.terminate()
    assert cluster.exit_codes() == [143, 1]
    assert not cluster[0].temp_dir.exists()
    archive = Archive(FolderArchive(cluster.checkpoints))
    texts = {(each.rank, each.path): list(archive.lines(each)) for each in archive.of(cluster.run_id)}
    assert texts[0, "logs/job-driver-job1.log"] == ["step 1", "step 2"]
    assert texts[1, "logs/raylet.out"] == ["with ***", "no end"]
    assert any("READY: 2 nodes" in line for line in texts[0, "agent/agent.log"])
    assert any("was lost" in line for line in texts[1, "agent/agent.log"])
    state = archive.state("job1")
    assert state is not None
    assert (state.job["status"], state.tasks) == ("RUNNING", ({"error_type": "WORKER_DIED"},))


@scenario
def a_signal_to_one_node_ends_the_others(nodes: Maker) -> None:
    cluster = nodes(2).start().ready()
    cluster[1].process.terminate()
    assert cluster[1].exit_code() == 143
    assert cluster[0].exit_code() == 1
    assert re.search(r"\) was (lost in phase ready|ended there): no heartbeat", cluster[0].reason())


@scenario
def a_ray_that_does_not_listen_is_killed(nodes: Maker) -> None:
    """Children of children that ignore SIGTERM, one of them a daemon in its own session."""
    stubborn = "trap '' TERM INT HUP; while :; do sleep 0.2; done"
    cluster = nodes(1)
    node = cluster.start_one(0, f'--setup=setsid sh -c "{stubborn}" & sh -c "{stubborn}" & wait')
    until(lambda: sum("trap" in line for line in cluster.processes().values()) >= 3, "all run")
    _ends(cluster, node.process.terminate, "ended by SIGTERM", 143)


test_scenario = scenario.test()
