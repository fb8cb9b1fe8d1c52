"""The one job of a cluster: what is sent, what is printed, and how the agent ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudrl.errors import InputError
from cloudrl.node import job as node_job
from cloudrl.node.job import ClusterJob, read_job
from cloudrl.node.shutdown import Shutdown

REQUEST = {"submission_id": "run", "entrypoint": "true", "runtime_env": {}, "metadata": {}}


class Dashboard:
    """Ray's, with a job that ends as told."""

    def __init__(self, refused: str = "") -> None:
        self.refused, self.details, self.submitted = refused, {"status": "RUNNING"}, list[Any]()

    def submit(self, body: dict[str, Any]) -> str:
        self.submitted.append(body)
        return self.refused

    def job(self, submission_id: str) -> dict[str, Any] | None:
        assert submission_id == "run"
        return self.details


@pytest.fixture(autouse=True)
def at_each_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_job, "_POLL_S", -1.0)


def test_the_file_becomes_the_request(tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    given = {name: value for name, value in REQUEST.items() if name != "entrypoint"}
    file.write_text(json.dumps({**given, "argv": ["python3", "a b", "$(x)"]}))
    assert read_job(file) == {**REQUEST, "entrypoint": "python3 'a b' '$(x)'"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"argv": 3, "submission_id": "x"}'])
def test_a_file_that_is_no_job_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "job.json"
    file.write_text(text)
    with pytest.raises(InputError, match="cannot be read"):
        read_job(file)


def test_its_log_is_printed_as_it_grows_to_its_last_byte(tmp_path: Path) -> None:
    printed: list[bytes] = []
    dashboard = Dashboard()
    job = ClusterJob(REQUEST, dashboard, printed.append)  # type: ignore[arg-type]
    job.follow(tmp_path)  # before there is a log
    log = tmp_path / "job-driver-run.log"
    log.write_bytes(b"step 1\n\xff")
    job.follow(tmp_path)
    with log.open("ab") as file:
        file.write(b"step 2")
    dashboard.details = {"status": "SUCCEEDED", "driver_exit_code": 0}
    with pytest.raises(Shutdown, match="job run: SUCCEEDED") as ended:
        job.follow(tmp_path)
    assert ended.value.exit_code == 0
    assert b"".join(printed) == b"step 1\n\xffstep 2"
    assert dashboard.submitted == [REQUEST]


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        ("FAILED", 7, 7),
        ("FAILED", None, 1),
        ("FAILED", 0, 1),
        ("FAILED", -9, 137),
        ("FAILED", 300, 1),
        ("STOPPED", None, 1),
    ],
)
def test_the_agent_ends_with_its_exit_code(tmp_path: Path, status: str, code: int | None, expected: int) -> None:
    dashboard = Dashboard()
    dashboard.details = {"status": status, "driver_exit_code": code}
    with pytest.raises(Shutdown) as ended:
        ClusterJob(REQUEST, dashboard, lambda _: None).follow(tmp_path)  # type: ignore[arg-type]
    assert ended.value.exit_code == expected


def test_what_ray_refuses_ends_the_cluster_with_rays_words() -> None:
    with pytest.raises(Shutdown, match="Ray refused the job: 400: no such field") as ended:
        ClusterJob(REQUEST, Dashboard("400: no such field"), lambda _: None).follow(None)  # type: ignore[arg-type]
    assert ended.value.exit_code == 1
