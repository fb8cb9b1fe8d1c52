"""Jobs that went down with their cluster, by what the agents of its nodes have logged."""

from dataclasses import replace

import pytest
from failed_job import NODES, driver, task

from cloudrl.logs.causes import Evidence
from cloudrl.logs.causes.evidence import AgentLog
from cloudrl.logs.causes.finder import find_cause
from cloudrl.protocol.outcome import Outcome
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.ray_state import RayState


def agent(rank: int, reason: str = "", at: float = 0.0, *lines: str) -> AgentLog:
    end = [Outcome(Phase.FAILED, reason, final=False, at=at).to_line()] if reason else []
    return AgentLog(rank, (f"[10:00:00 rank {rank}] phase: ready", *lines, *end))


LOST = "rank 1 (host-b, 10.0.0.2) was lost in phase ready: no heartbeat for 3 s, and its agent is gone"
RUNNING = RayState(saved_at=0.0, job={"status": "RUNNING"})


def test_a_job_that_went_down_with_its_cluster():
    survived = driver("Traceback (most recent call last):", "ValueError: survived", *["a step is done"] * 30)
    found = find_cause(Evidence(RUNNING, NODES, [survived], agents=[agent(0, LOST, 50.0), agent(1)]))
    assert (found.error, found.rank, found.process, found.at) == (LOST, 1, "agent", 50.0)
    assert found.signature == "node-lost"
    early = replace(RUNNING, tasks=(task("tried", 1000),))
    assert find_cause(Evidence(early, NODES, [survived], agents=[agent(0, LOST, 500.0)])).error == LOST
    dead = replace(RUNNING, nodes=({"node_id": "n1", "state": "DEAD", "state_message": "gone", "end_time_ms": 49_000},))
    found = find_cause(Evidence(dead, NODES, agents=[agent(0, LOST, 50.0)]))
    assert (found.error, found.process) == ("the node has died: gone", "raylet"), "Ray saw it before the agents did"


@pytest.mark.parametrize(
    "said",
    [
        ("Some Ray subprocesses exited unexpectedly:", "  gcs_server [exit code=-9]"),
        (
            "[state-dump] x",
            "ERR scripts.py:128 -- \x1b[31m----- END gcs_server.out tail (exit code(s)=-9 (signal 9)) -----",
        ),
    ],
)
def test_a_process_of_rays_that_was_killed(said: tuple[str, str]):
    ended = agent(0, "rank 0, ray: Ray's processes on rank 0 ended (status 1)", 50.0, *said)
    found = find_cause(Evidence(agents=[agent(1, "the head (rank 0, 10.0.0.1) was lost: gone", 53.0), ended]))
    assert (found.error, found.rank) == ("Ray's gcs_server was killed by signal 9, SIGKILL", 0)
    assert (found.process, found.signature) == ("gcs_server", "process-killed")
    assert "exit code" in found.lines[-2]


def test_a_cluster_whose_agents_have_all_gone():
    gone = find_cause(Evidence(agents=[agent(0), agent(1)], cluster_is_over=True))
    assert (gone.error, gone.signature) == (
        "the agents of all nodes are gone, and none of them has logged why",
        "node-lost",
    )
    assert find_cause(Evidence(agents=[agent(0), agent(1)])) is None, "it may be up"
    down = AgentLog(0, ("[10:00:00 rank 0] ended by SIGTERM",))
    assert find_cause(Evidence(agents=[down, agent(1)], cluster_is_over=True)) is None, "somebody has ended it"
    assert find_cause(Evidence(RUNNING, agents=[agent(0)], cluster_is_over=True)) is None, "it has asked Ray at its end"


def test_a_cluster_that_ended_after_its_job_is_no_cause():
    follower = driver("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.")
    job = RayState(saved_at=0.0, job={"status": "FAILED", "end_time": 5000})
    assert find_cause(Evidence(job, NODES, [follower], agents=[agent(0, LOST, 5000.0)])) is None
    assert find_cause(Evidence(job, NODES, [follower], agents=[agent(0, LOST, 8.0)])).error == LOST
