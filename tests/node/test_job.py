"""The one job of a cluster: what is sent, what is printed, and how the agent ends."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudrl.errors import InputError
from cloudrl.node.job import ClusterJob, read_job
from cloudrl.node.shutdown import Shutdown

REQUEST = {"submission_id": "run", "entrypoint": "true", "runtime_env": {}, "metadata": {}}


class Dashboard:
    """Ray's, with a job that ends as told.

    Args:
        answers: to one submission after the other; the last stands for all that follow. None is lost on its way.
        has_it: whether it has the job though the answer was lost.
        silent: so many questions after the job are not answered.
    """

    def __init__(self, *answers: str | None, has_it: bool = False, silent: int = 0) -> None:
        self.answers, self.has_it, self.silent = list(answers or [""]), has_it, silent
        self.details, self.submitted = {"status": "RUNNING"}, list[Any]()

    def submit(self, body: dict[str, Any]) -> str | None:
        self.submitted.append(body)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.has_it |= answer == ""
        return answer

    def job(self, submission_id: str) -> dict[str, Any] | None:
        assert submission_id == "run"
        if self.silent > 0:
            self.silent -= 1
            return None
        return self.details if self.has_it else None


def cluster_job(dashboard: Dashboard, write: Callable[[bytes], object] = lambda _: None) -> ClusterJob:
    """A job that is asked for at each tick."""
    seconds = itertools.count()
    return ClusterJob(REQUEST, dashboard, write, clock=lambda: float(next(seconds)))  # type: ignore[arg-type]


def follow_to_its_end(job: ClusterJob, silence_s: float = 0.0) -> Shutdown:
    for _ in range(1000):
        try:
            job.follow(None, silence_s)
        except Shutdown as ended:
            return ended
    raise AssertionError("it goes on")


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
    job = cluster_job(dashboard, printed.append)
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
def test_the_agent_ends_with_its_exit_code(status: str, code: int | None, expected: int) -> None:
    dashboard = Dashboard()
    dashboard.details = {"status": status, "driver_exit_code": code}
    assert follow_to_its_end(cluster_job(dashboard)).exit_code == expected


def test_a_failure_counts_once_all_nodes_have_been_heard_of_after_it() -> None:
    """Its node may be lost, which has another end: Slurm queues the job again, and it resumes."""
    dashboard = Dashboard()
    dashboard.details = {"status": "FAILED", "driver_exit_code": 1}
    job = cluster_job(dashboard)
    with pytest.raises(AssertionError, match="it goes on"):
        follow_to_its_end(job, silence_s=10_000)
    assert follow_to_its_end(job).exit_code == 1
    dashboard.details = {"status": "SUCCEEDED", "driver_exit_code": 0}
    assert follow_to_its_end(cluster_job(dashboard), silence_s=10_000).exit_code == 0


def test_what_ray_refuses_ends_the_cluster_with_rays_words() -> None:
    ended = follow_to_its_end(cluster_job(Dashboard("400: no such field")))
    assert (str(ended), ended.exit_code) == ("Ray refused the job: 400: no such field", 1)


@pytest.mark.parametrize(
    ("dashboard", "sent"),
    [
        (Dashboard(None, has_it=True), 1),
        (Dashboard(None, None, ""), 3),
        (Dashboard("500: id taken", has_it=True), 1),
        (Dashboard(None, "500: id taken", has_it=True, silent=2), 3),
    ],
    ids=["Ray has it", "it never got there", "it was sent again", "Ray is silent for a while"],
)
def test_a_lost_answer_is_no_refusal(dashboard: Dashboard, sent: int) -> None:
    """An end of the cluster would leave a job that is running, and a Slurm job with status 1."""
    dashboard.details = {"status": "SUCCEEDED", "driver_exit_code": 0}
    assert follow_to_its_end(cluster_job(dashboard)).exit_code == 0
    assert len(dashboard.submitted) == sent


def test_a_dashboard_that_never_answers_ends_the_cluster() -> None:
    ended = follow_to_its_end(cluster_job(Dashboard(None)))
    assert "does not answer" in str(ended)
    assert ended.exit_code == 1
