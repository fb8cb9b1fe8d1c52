"""The questions to Ray's state API, and what is kept of its answers."""

import pytest

from cloudrl.protocol.ray_state import KINDS, RayState, checked, path_of, rows_of, shown


def test_the_questions_are_those_of_ray() -> None:
    failed = "filter_keys=state&filter_predicates=%3D&filter_values=FAILED"
    of_job = "filter_keys=job_id&filter_predicates=%3D&filter_values=02000000"
    dead = "filter_keys=is_alive&filter_predicates=%3D&filter_values=false"
    assert {kind: path_of(kind, "02000000") for kind in KINDS} == {
        "tasks": f"/api/v0/tasks?detail=true&limit=1000&{failed}&{of_job}",
        "workers": f"/api/v0/workers?detail=true&limit=1000&{dead}",
        "actors": f"/api/v0/actors?detail=true&limit=1000&{of_job}",
        "nodes": "/api/v0/nodes?detail=true&limit=1000",
    }
    assert "job_id" not in path_of("tasks", None)


def test_rows_come_without_the_variables_of_a_job() -> None:
    row = {"task_id": "1", "runtime_env_info": {"env_vars": {"A": "secret"}}, "serialized_runtime_env": "secret"}
    assert rows_of({"data": {"result": {"result": [row, "odd"]}}}) == ({"task_id": "1"}, "odd")
    assert shown({"status": "FAILED", "runtime_env": {"env_vars": {}}}) == {"status": "FAILED"}


@pytest.mark.parametrize("answer", [None, [], {"data": {}}, {"data": {"result": {"result": "x"}}}])
def test_what_is_no_answer_has_no_rows(answer: object) -> None:
    assert rows_of(answer) is None


def test_fields_of_another_kind_are_left_out():
    """A hostile dashboard names a process by a list, and times by words."""
    row = {"task_id": {}, "node_id": ["n"], "worker_pid": "x", "end_time_ms": True, "state": "FAILED", "more": [1]}
    assert shown(row) == {"state": "FAILED", "more": [1]}
    state = RayState(1.0, {"end_time": "x", "status": "FAILED"}, tasks=(row, None, 5))
    assert checked(state) == RayState(1.0, {"status": "FAILED"}, tasks=({"state": "FAILED", "more": [1]},))
