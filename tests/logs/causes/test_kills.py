"""Every process of a cluster, killed with signal 9: what `why` says of it from what the cluster has kept."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from kept_logs import keep as keep_piece
from recordings import keep, load

from cloudrl.logs.archive import Archive, FolderArchive
from cloudrl.logs.causes import Cause
from cloudrl.logs.causes.finder import find_cause
from cloudrl.logs.causes.kept import kept_evidence
from cloudrl.protocol.outcome import Outcome
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.ray_state import RayState
from cloudrl.protocol.wire import to_json
from cloudrl.sdk.failures import why

JOB = "x"
RUNNING = {"status": "RUNNING", "submission_id": JOB}
FAILED = {"status": "FAILED", "submission_id": JOB, "end_time": 5_000_000.0}
ENDED = "Some Ray subprocesses exited unexpectedly:\n  {} [exit code=-9]\n"
REASONS = (
    "Raylet is terminated. Termination is unexpected. Possible reasons include: (1) SIGKILL by the user or system OOM "
    "killer, (2) Invalid memory access from Raylet causing SIGSEGV or SIGBUS, (3) Other termination signals.\n"
)


@dataclass(frozen=True)
class Kill:
    """What is left after one: Ray's record of the job, the driver's log, and what the agent of each rank has logged."""

    job: dict[str, object]
    log: str
    agents: tuple[str, ...]
    error: str
    signature: str
    rank: int | None
    process: str


def failed(reason: str) -> str:
    return Outcome(Phase.FAILED, reason, final=False, at=5000.0).to_line() + "\n"


LOST = "rank 1 (host-b, 10.0.0.2) was lost in phase ready: no heartbeat for 3 s, and its agent is gone"
HEAD = "the head (rank 0, 10.0.0.1) was lost: its agent is gone, last heard 3 s ago"
DRIVER = "the job's driver was killed by signal 9, SIGKILL"
KILLS = {
    "the driver's shell": Kill(
        {**FAILED, "message": "Job entrypoint command failed with exit code -9", "driver_exit_code": -9},
        "step:1\n", ("", ""), f"{DRIVER} (exit code -9)", "process-killed", None, "driver",
    ),
    "the driver's Python": Kill(
        {**FAILED, "driver_exit_code": 137},
        "step:1\nKilled\n", ("", ""), f"{DRIVER} (exit code 137)", "process-killed", None, "driver",
    ),
    "a raylet": Kill(
        RUNNING, f"step:1\n{REASONS}",
        ("", ENDED.format("raylet") + failed("rank 1, ray: Ray's processes on rank 1 ended (status 1)")),
        "Ray's raylet was killed by signal 9, SIGKILL", "process-killed", 1, "raylet",
    ),
    "the GCS": Kill(
        RUNNING, "step:1\n",
        (ENDED.format("gcs_server") + failed("rank 0, ray: Ray's processes on rank 0 ended"), ""),
        "Ray's gcs_server was killed by signal 9, SIGKILL", "process-killed", 0, "gcs_server",
    ),
    "the agent of a worker": Kill(RUNNING, "step:1\n", (failed(LOST), ""), LOST, "node-lost", 1, "agent"),
    "the agent of the head": Kill(RUNNING, "step:1\n", ("", failed(HEAD)), HEAD, "node-lost", 0, "agent"),
    "everything": Kill(
        {}, "step:1\n", ("", ""), "the agents of all nodes are gone, and none of them has logged why", "node-lost",
        None, "agent",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KILLS)
def test_the_process_that_was_killed(name: str, tmp_path: Path):
    kill = KILLS[name]
    keep_piece(tmp_path, f"logs/job-driver-{JOB}.log", kill.log.encode())
    if kill.job:
        state = RayState(saved_at=0.0, job=kill.job)
        keep_piece(tmp_path, f"state/{JOB}.json", json.dumps(to_json(state)).encode())
    for rank, lines in enumerate(kill.agents):
        keep_piece(tmp_path, "agent/agent.log", f"[10:00:00 rank {rank}] phase: ready\n{lines}".encode(), rank=rank)
    found = find_cause(kept_evidence(Archive(FolderArchive(tmp_path)), JOB, cluster_is_over=True))
    assert found is not None
    assert (found.error, found.signature) == (kill.error, kill.signature)
    assert (found.rank, found.process) == (kill.rank, kill.process)


def test_a_worker_of_the_job_that_was_killed(tmp_path: Path):
    keep(tmp_path, load("kill"))
    found = why(folder=tmp_path).cause
    assert isinstance(found, Cause)
    assert (found.signature, found.process.partition(" ")[0]) == ("process-killed", "WorkerDict_1:0")
