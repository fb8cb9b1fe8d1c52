"""A job that failed, in Ray's records and logs as small as they can be."""

from collections.abc import Sequence
from typing import Any

from cloudrl.logs.causes import Cause, Evidence, LogTail
from cloudrl.logs.causes.finder import find_cause
from cloudrl.protocol.ray_state import RayState

NODES = {"n0": 0, "n1": 1}
BOOM = 'User exception:\nTraceback (most recent call last):\n  File "/job/a.py", line 1, in f\nValueError: boom'


def task(name: str, at: float, message: str = BOOM, **fields: Any) -> dict[str, Any]:
    row = {"task_id": name, "name": name, "state": "FAILED", "error_type": "TASK_EXECUTION_EXCEPTION"}
    return {**row, "error_message": message, "node_id": "n1", "worker_pid": 7, "end_time_ms": at, **fields}


def worker(pid: int, at: float, exit_type: str = "SYSTEM_ERROR", **fields: Any) -> dict[str, Any]:
    detail = "Worker unexpectedly exits with a connection error code 2. End of file. Some common causes include: many"
    row = {"worker_id": f"w{pid}", "is_alive": False, "worker_type": "WORKER", "exit_type": exit_type, "pid": pid}
    return {**row, "node_id": "n0", "exit_detail": detail, "end_time_ms": at, **fields}


def actor(name: str, pid: int, node: str = "n0", class_name: str = "Rank") -> dict[str, Any]:
    return {"actor_id": f"{pid:032x}", "class_name": class_name, "name": name, "pid": pid, "node_id": node}


def find(logs: Sequence[LogTail] = (), *, job: dict[str, Any] | None = None, **rows: Sequence[Any]) -> Cause | None:
    state = RayState(saved_at=0.0, job=job or {}, **{kind: tuple(given) for kind, given in rows.items()})
    return find_cause(Evidence(state, NODES, logs))


def driver(*lines: str) -> LogTail:
    return LogTail("job-driver-x.log", 0, lines)
