"""What Ray's state API says of a job: the same to whoever asks a living cluster and whoever reads what is kept of it.

Ray 2.60: dashboard/modules/state/state_head.py has the routes, util/state/common.py the fields of each entry. Rows are
as Ray gives them, unordered, less the runtime environments, which hold variables in clear.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, Mapping, Optional, Tuple
from urllib.parse import urlencode

LIMIT = 1000
"""Rows of each kind. Ray itself refuses more than 10,000 (RAY_MAX_LIMIT_FROM_API_SERVER)."""
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
"""Ray 2.60, dashboard/modules/job/common.py: JobStatus.is_terminal."""

_FILTERS: Mapping[str, Tuple[Tuple[str, str], ...]] = {
    "tasks": (("state", "FAILED"),),
    "workers": (("is_alive", "false"),),
    "actors": (),
    "nodes": (),
}
_OF_A_JOB = ("tasks", "actors")
_FIELDS: Mapping[str, Any] = {
    **dict.fromkeys(
        (
            "task_id", "parent_task_id", "actor_id", "node_id", "worker_id", "job_id", "name", "class_name", "state",
            "state_message", "error_type", "error_message", "exit_type", "exit_detail", "worker_type", "node_ip",
            "status", "message", "submission_id", "driver_node_id",
        ),
        str,
    ),
    **dict.fromkeys(
        ("pid", "worker_pid", "start_time_ms", "end_time_ms", "start_time", "end_time", "driver_exit_code"),
        (int, float),
    ),
}  # fmt: skip
"""What is looked at, and its kind."""
_LEFT_OUT = ("runtime_env_info", "serialized_runtime_env")


@dataclass(frozen=True)
class RayState:
    """Ray's state as far as it tells why a job has ended.

    Attributes:
        saved_at: seconds since the epoch.
        job: of `/api/jobs/`, without its runtime environment; `submission_id` is None for a driver that a user started.
        tasks: those that have failed: error_type, error_message, node_id, worker_id, worker_pid, end_time_ms.
        workers: those that live no more, of any job: exit_type, exit_detail, node_id, worker_id, pid, end_time_ms.
        actors: living or dead: class_name, state, death_cause, node_id, pid.
        nodes: all of the cluster, with state and state_message.
    """

    saved_at: float
    job: Dict[str, Any]
    tasks: Tuple[Any, ...] = ()
    workers: Tuple[Any, ...] = ()
    actors: Tuple[Any, ...] = ()
    nodes: Tuple[Any, ...] = ()


KINDS = tuple(_FILTERS)
"""Fields of a `RayState` that are one question each."""


def kinds_of(job_id: Optional[str]) -> Tuple[str, ...]:
    """What is asked of a job by Ray's own id of it; of one whose driver never came to Ray, of the nodes alone."""
    return KINDS if job_id else ("nodes",)


def path_of(kind: str, job_id: Optional[str]) -> str:
    """The question for one of `KINDS`.

    Args:
        kind: which.
        job_id: Ray's own hexadecimal id, not that of the submission: of this job alone, where the kind has one.
    """
    filters = [*_FILTERS[kind], *([("job_id", job_id)] if job_id and kind in _OF_A_JOB else [])]
    query = [("detail", "true"), ("limit", str(LIMIT))]
    for key, value in filters:
        query += [("filter_keys", key), ("filter_predicates", "="), ("filter_values", value)]
    return f"/api/v0/{kind}?{urlencode(query)}"


def rows_of(answer: Any) -> Optional[Tuple[Any, ...]]:
    """The rows of an answer, None where it is no answer of Ray's."""
    try:
        rows = answer["data"]["result"]["result"]
    except (TypeError, KeyError):
        return None
    return tuple(map(shown, rows)) if isinstance(rows, list) else None


def shown(row: Any) -> Any:
    """A row, or a job, without what may hold secrets, and without fields that are not of their kind."""
    if not isinstance(row, dict):
        return row
    return {key: value for key, value in row.items() if key not in (*_LEFT_OUT, "runtime_env") and _fits(key, value)}


def checked(state: RayState) -> RayState:
    """State that somebody has kept, without what Ray never says."""
    fields: Dict[str, Any] = {
        kind: tuple(shown(row) for row in getattr(state, kind) if isinstance(row, dict)) for kind in KINDS
    }
    return replace(state, job=shown(state.job), **fields)


def _fits(key: str, value: Any) -> bool:
    if value is None or key not in _FIELDS:
        return True
    return isinstance(value, _FIELDS[key]) and not isinstance(value, bool)
