"""Jobs that failed on a real Ray of two nodes: the first cause and its place, from the state and from logs alone."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from recordings import FOLDER, load

from cloudrl.logs.causes import Evidence
from cloudrl.logs.causes.finder import find_cause
from cloudrl.protocol.ray_state import KINDS

CAUSES = {
    # recording: rank of the node, process without its id, signature, how the error begins
    "barrier": (1, "Rank", "collective-timeout", "Rank (pid 25028) did not come while the others waited for it"),
    "data_missing": (1, "TaskRunnerV1", "data-missing", "FileNotFoundError: Unable to find '/nowhere/train.parquet'"),
    "disk_full": (1, "Rank", "disk-full", "OSError: [Errno 28] No space left on device"),
    "divisibility": (1, "WorkerDict_0:0", "divisibility", "AssertionError: Got mini_batch_size=7 and self.engine"),
    "exits": (1, "Rank", "process-killed", "Worker unexpectedly exits with a connection error"),
    "full_checkpoints": (0, "WorkerDict_1:0", "disk-full", "RuntimeError: [enforce fail at inline_container"),
    "gpus": (1, "TaskRunnerV1", "too-few-gpus", "ValueError: Total available GPUs 2.0 is less than total desired"),
    "infeasible": (0, "driver", "placement-waits", "ray.exceptions.GetTimeoutError: Get timed out"),
    "kill": (0, "WorkerDict_1:0", "process-killed", "Worker unexpectedly exits with a connection error"),
    "killed": (1, "Rank", "process-killed", "Worker unexpectedly exits with a connection error"),
    "nan": (1, "Rank", "nan", "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"),
    "out_of_memory": (1, "Rank", "allocation-failed", "RuntimeError: [enforce fail at alloc_cpu"),
    "port_taken": (0, "Rank", "port-taken", "torch.distributed.DistNetworkError: The server socket has failed"),
    "raises": (0, "Rank", None, "ValueError: rank 1 has no more"),
    "rank_missing": (None, "", "rank-missing", "torch.distributed.DistStoreError: wait timeout after 5000ms"),
    "reward": (1, "reward_loop_worker_0", "reward-fails", "ZeroDivisionError: float division by zero"),
    "runtime_env": (0, "driver", "upload", "OSError: Failed to download runtime_env file package"),
    "segmentation_fault": (0, "Rank", "segmentation-fault", "*** SIGSEGV received at time"),
    "shards_missing": (0, "Rank", "shards-missing", "FileNotFoundError: [Errno 2] No such file or directory"),
    "too_many_files": (0, "Rank", "too-many-files", "OSError: [Errno 24] Too many open files"),
    "tool_import": (1, "agent_loop_worker_0_b1c314aa", "tool-fails", "ModuleNotFoundError: No module named"),
    "unknown_key": (0, "driver", "unknown-key", "Could not override 'actor_rollout_ref.rollout.nonsense'"),
    "wrong_model": (1, "TaskRunnerV1", "wrong-model", "hydra.errors.InstantiationException: Error in call"),
}


def places(name: str) -> dict[str, Any] | None:
    """Process and node of rank 1, as the job's log has it."""
    lines = "\n".join(line for log in load(name).logs if log.is_driver for line in log.lines)
    found = re.search(r'PLACE (\{"rank": 1.*?\})', lines)
    return json.loads(found[1]) if found else None


def test_each_recording_has_its_row():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(CAUSES)


@pytest.mark.parametrize("name", CAUSES)
def test_the_first_cause(name: str):
    rank, process, signature, error = CAUSES[name]
    found = find_cause(load(name))
    assert (found.rank, found.process.partition(" (")[0], found.signature) == (rank, process, signature)
    assert found.error.startswith(error)


def test_a_reward_that_failed_by_the_log_of_the_driver_alone():
    """It ends with a batch without answers, and holds the reason."""
    logs = tuple(log for log in load("reward").logs if log.is_driver)
    found = find_cause(Evidence(logs=logs))
    assert (found.process, found.signature) == ("AgentLoopWorkerTQ (pid 29724)", "reward-fails")
    assert found.error == "ZeroDivisionError: float division by zero"
    assert any("/job/reward.py" in line for line in found.lines)


@pytest.mark.parametrize("name", CAUSES)
def test_the_order_of_rows_changes_nothing(name: str):
    held = load(name)
    turned = {kind: getattr(held.state, kind)[::-1] for kind in KINDS}
    assert find_cause(replace(held, state=replace(held.state, **turned))) == find_cause(held)


@pytest.mark.parametrize("name", [name for name, row in CAUSES.items() if places(name) and row[0] is not None])
def test_the_process_of_the_rank_that_was_to_blame(name: str):
    """The jobs of two ranks print which process each is; rank 1 was made to fail, whatever node it was on."""
    held = load(name)
    found, blame = find_cause(held), places(name)
    assert (found.process, found.rank) == (f"Rank (pid {blame['pid']})", held.ranks[blame["node"]])
