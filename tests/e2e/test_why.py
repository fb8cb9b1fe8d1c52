"""`cloudrl why` on a real Ray of two nodes: the first cause, and the node and process of the rank that is to blame."""

import json
import re
import shlex
import sys
import time
from pathlib import Path

import pytest
from patience import SLOWER

from cloudrl.jobs import find_job
from cloudrl.sdk.running import attach
from cloudrl.transport import Connection

pytestmark = pytest.mark.e2e

NAME = "why"
CAUSES = {
    # way: signature, the error
    "barrier": ("collective-timeout", r"Rank \(pid \d+\) did not come while the others waited for it.*"),
    "disk_full": ("disk-full", r"OSError: \[Errno 28\] No space left on device"),
    "exits": ("process-killed", ".*"),
    "killed": ("process-killed", r"Worker unexpectedly exits with a connection error code 2\. End of file\."),
    "nan": ("nan", "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"),
    "out_of_memory": ("allocation-failed", r"RuntimeError: \[enforce fail at alloc_cpu\.cpp.*"),
    "port_taken": ("port-taken", "torch.distributed.DistNetworkError: .*address already in use.*"),
    "raises": (None, "ValueError: rank 1 has no more rows"),
    "segmentation_fault": ("segmentation-fault", r"\*\*\* SIGSEGV received at .*"),
    "shards_missing": ("shards-missing", ".*No such file or directory.*rank_1.pt'"),
    "too_many_files": ("too-many-files", r"OSError: \[Errno 24\] Too many open files.*"),
}
NOWHERE = {
    "infeasible": ("placement-waits", ".*GetTimeoutError.*"),
    "rank_missing": (
        "rank-missing",
        ".*(wait timeout|2/3 clients joined|timed out .* trying to connect).*",
    ),
}


QUICK = ("barrier", "killed", "raises", "segmentation_fault")
"""One of each kind of end. `tests/logs/causes` has recordings of all, and what torch raises in its own words."""


@pytest.fixture(scope="module")
def connection(shell) -> Connection:
    shell.run("up", NAME, "--on", "local", "--nodes", "2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLOUDRL_HOME", str(shell.home / "home"))
        yield attach(NAME).connection


def fail(connection: Connection, way: str) -> str:
    """Run the job until it has failed; returns its log."""
    script = Path(__file__).with_name("failing_ranks.py")
    connection.ray().submit_job({"entrypoint": f"{sys.executable} {script} {way}", "submission_id": way})
    job = find_job(connection, way)
    assert job.wait(timeout_s=180) == "FAILED"
    return "\n".join(job.logs())


def why(shell, way: str) -> dict[str, object]:
    return json.loads(shell.run("why", f"ray://{NAME}/{way}", "--json").stdout)["cause"]


@pytest.mark.parametrize("way", [way if way in QUICK else pytest.param(way, marks=pytest.mark.slow) for way in CAUSES])
def test_the_first_cause_and_its_rank(way: str, shell, connection: Connection):
    signature, error = CAUSES[way]
    log = fail(connection, way)
    blame = next(each for each in map(json.loads, re.findall(r"PLACE (\{.*?\})", log)) if each["rank"] == 1)
    head = next(node.node_id for node in connection.ray().nodes() if node.is_head)
    cause = why(shell, way)
    assert cause["signature"] == signature, cause
    assert re.fullmatch(error, cause["error"])
    assert cause["process"] == f"Rank (pid {blame['pid']})"
    assert cause["rank"] == (0 if blame["node"] == head else 1)


@pytest.mark.parametrize("way", ["rank_missing", pytest.param("infeasible", marks=pytest.mark.slow)])
def test_a_failure_that_no_rank_is_to_blame_for(way: str, shell, connection: Connection):
    signature, error = NOWHERE[way]
    fail(connection, way)
    cause = why(shell, way)
    assert cause["signature"] == signature, cause
    assert re.fullmatch(error, cause["error"])


def test_an_actor_that_no_node_has_room_for_hangs(shell, connection: Connection):
    """Of any job, also one that is no training: nothing of what it waits for can ever come."""
    script = Path(__file__).with_name("other_jobs.py")
    entrypoint = shlex.join([sys.executable, str(script), "actor"])
    connection.ray().submit_job({"entrypoint": entrypoint, "submission_id": "actor"})
    deadline = time.monotonic() + 60 * SLOWER
    while "no node has more than GPU 1" not in (said := shell.run("why", f"ray://{NAME}/actor").stdout):
        assert time.monotonic() < deadline
        time.sleep(2)
    assert said.startswith("the job cannot go on: running for")
    connection.ray().stop_job("actor")


def test_a_working_directory_that_is_gone(shell, connection: Connection):
    package = {"working_dir": "gcs://_ray_pkg_0123456789abcdef.zip"}
    connection.ray().submit_job({"entrypoint": "true", "submission_id": "gone", "runtime_env": package})
    assert find_job(connection, "gone").wait(timeout_s=180) == "FAILED"
    assert why(shell, "gone")["signature"] == "upload"


CHAIN = "KeyError: 1\n\nThe above exception was the direct cause of the following exception:\n\nOSError: no header"
DRIVERS = {
    "killed-driver": (
        shlex.join([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]),
        "process-killed",
        "the job's driver was killed by signal 9",
    ),
    "chain": (shlex.join([sys.executable, "-c", f"import sys; sys.exit({CHAIN!r})"]), None, "OSError: no header"),
    "no-program": ("torchrunn train.py", "program-missing", "torchrunn: "),
}


@pytest.mark.parametrize("way", DRIVERS)
def test_how_a_driver_ended(way: str, shell, connection: Connection):
    entrypoint, signature, error = DRIVERS[way]
    connection.ray().submit_job({"entrypoint": entrypoint, "submission_id": way})
    assert find_job(connection, way).wait(timeout_s=180) == "FAILED"
    cause = why(shell, way)
    assert (cause["signature"], cause["process"], cause["rank"]) == (signature, "driver", 0)
    assert error in cause["error"]
