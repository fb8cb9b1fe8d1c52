"""A process that the kernel has ended for lack of memory, by the counters of its node."""

import json
from pathlib import Path

import pytest
from failed_job import NODES, actor, worker
from kept_logs import keep as keep_piece

from cloudrl.logs.causes import Cause, Evidence
from cloudrl.logs.causes.finder import find_cause
from cloudrl.logs.causes.kernel_kills import by_kernel
from cloudrl.logs.causes.signatures import recognise
from cloudrl.logs.causes.suspect import Suspect
from cloudrl.protocol.oom_kills import OomKills
from cloudrl.protocol.ray_state import RayState
from cloudrl.protocol.wire import to_json
from cloudrl.sdk.failures import why

DIED_AT_MS = 5_000_000


def cause_with(kills: dict[int, OomKills]) -> Cause:
    dead, ended = worker(3, DIED_AT_MS, node_id="n1"), actor("", 3, "n1")
    state = RayState(saved_at=0.0, job={}, workers=(dead,), actors=(ended,))
    found = find_cause(Evidence(state, NODES, oom_kills=kills))
    assert found is not None
    return found


def test_a_kill_on_the_same_node_at_that_time_is_the_cause():
    found = cause_with({1: OomKills(2, 5010.0)})
    assert (found.signature, found.rank) == ("kernel-memory", 1)
    assert found.error.endswith("the kernel of rank 1 has ended 2 processes for lack of memory")


@pytest.mark.parametrize("kills", [{}, {0: OomKills(2, 5010.0)}, {1: OomKills(2, 4000.0)}])
def test_a_kill_elsewhere_or_long_before_is_not(kills: dict[int, OomKills]):
    assert cause_with(kills).signature == "process-killed"


@pytest.mark.parametrize(("at", "name"), [(4000.0, "process-killed"), (5000.0, "kernel-memory")])
def test_where_nothing_says_when_a_process_died_the_end_of_the_job_counts(at: float, name: str):
    """As where only the driver's log, whose lines have no times, has the death."""
    evidence = Evidence(RayState(saved_at=0.0, job={"end_time": DIED_AT_MS}), oom_kills={1: OomKills(1, at)})
    text = "Worker unexpectedly exits with a connection error code 2. End of file."
    found = by_kernel(evidence, Suspect(text, (text,), rank=1, crashed=True, signature=recognise(text)))
    assert found.signature is not None
    assert found.signature.name == name
    assert found.error.endswith("has ended a process for lack of memory") is (name == "kernel-memory")


def test_a_driver_that_was_killed_on_a_cluster_that_is_gone(tmp_path: Path):
    job = {"status": "FAILED", "submission_id": "x", "driver_exit_code": 137, "driver_node_id": "n0", "end_time": 5e6}
    nodes = ({"node_id": "n0", "is_head_node": True},)
    keep_piece(tmp_path, "logs/job-driver-x.log", b"step:1\nKilled\n")
    keep_piece(tmp_path, "state/x.json", json.dumps(to_json(RayState(saved_at=0.0, job=job, nodes=nodes))).encode())
    keep_piece(tmp_path, "agent/agent.log", f"[10:00 rank 0] {OomKills(1, 4999.0).to_line()}\n".encode())
    found = why("x", folder=tmp_path).cause
    assert (found.signature, found.process, found.rank) == ("kernel-memory", "driver", 0)
    assert "killed by signal 9, SIGKILL" in found.error
