"""The one job of a cluster: its file, what is printed, and how the agent ends."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloudrl.errors import InputError
from cloudrl.node.job import ClusterJob, read_job
from cloudrl.node.shutdown import Shutdown
from cloudrl.protocol.durable_jobs import Attempt, DurableJob, Outcome, Result

PLAN = {"world_size": 2, "total_steps": 12, "saves": True, "chooses_step": False}
FILE: dict[str, Any] = {
    "submission_id": "run", "runtime_env": {}, "metadata": {"job_name": "adder"}, "argv": ["python3", "a b", "$(x)"],
    "durable": PLAN,
}  # fmt: skip


class Lab:
    """A job of the supervisor's, as a test has it; Ray knows the end of its last attempt."""

    def __init__(self, logs: Path) -> None:
        self.logs, self.printed, self.details = logs, list[bytes](), dict[str, Any]()
        self.supervisor = SimpleNamespace(jobs=[], refusal="", is_settled=True)
        self.now = 0.0
        self.job = ClusterJob(
            "run", self.supervisor, lambda _: self.details, self.printed.append, clock=lambda: self.now
        )  # type: ignore[arg-type]  # fmt: skip

    def has(self, attempts: int, result: Result | None = None) -> None:
        names = ["run", *(f"run-{number}" for number in range(2, attempts + 1))]
        tried = tuple(Attempt(number, name, "c", 0, 0.0) for number, name in enumerate(names, 1))
        outcome = Outcome(result, "", 0.0) if result is not None else None
        self.supervisor.jobs = [DurableJob("run", "run", "r", {}, 0.0, attempts=tried[:attempts], outcome=outcome)]

    def write(self, name: str, text: bytes) -> None:
        with (self.logs / f"job-driver-{name}.log").open("ab") as file:
            file.write(text)

    def end(self) -> Shutdown:
        with pytest.raises(Shutdown) as ended:
            self.job.follow(self.logs)
        return ended.value


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_the_file_becomes_a_job_of_the_supervisor(tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps(FILE))
    job = read_job(file)
    assert (job.job_id, job.run, job.world_size, job.total_steps, job.saves) == ("run", "adder", 2, 12, True)
    assert job.request == {
        "submission_id": "run", "entrypoint": "python3 'a b' '$(x)'", "runtime_env": {}, "metadata": FILE["metadata"],
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({**FILE, "argv": 3}), json.dumps({**FILE, "durable": 1})])
def test_a_file_that_is_no_job_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "job.json"
    file.write_text(text)
    with pytest.raises(InputError, match="cannot be read"):
        read_job(file)


def test_the_logs_of_its_attempts_are_printed_as_they_grow_to_the_last_byte(lab: Lab) -> None:
    lab.job.follow(None)
    lab.has(1)
    lab.job.follow(lab.logs)  # before there is a log
    lab.write("run", b"step 1\n\xff")
    lab.job.follow(lab.logs)
    lab.write("run", b"killed")
    lab.has(2)
    lab.job.follow(lab.logs)
    lab.write("run-2", b"step 2")
    lab.has(2, Result.SUCCEEDED)
    assert lab.end().exit_code == 0
    assert b"".join(lab.printed) == b"step 1\n\xffkilledstep 2"


@pytest.mark.parametrize(
    ("result", "code", "expected"),
    [
        (Result.SUCCEEDED, 0, 0),
        (Result.SUCCEEDED, 7, 0),
        (Result.FAILED, 7, 7),
        (Result.FAILED, None, 1),
        (Result.FAILED, 0, 1),
        (Result.FAILED, -9, 137),
        (Result.FAILED, 300, 1),
        (Result.STOPPED, None, 1),
    ],
)
def test_the_agent_ends_with_the_exit_code_of_its_last_attempt(
    lab: Lab, result: Result, code: int | None, expected: int
) -> None:
    lab.details = {"driver_exit_code": code}
    lab.has(1, result)
    assert lab.end().exit_code == expected


def test_its_end_is_on_the_volumes_before_the_agent_ends_or_the_agent_does_not_wait_for_ever(lab: Lab) -> None:
    lab.supervisor.is_settled = False
    lab.has(1, Result.SUCCEEDED)
    lab.job.follow(lab.logs)
    lab.now = 59.0
    lab.job.follow(lab.logs)
    lab.now = 61.0
    assert lab.end().exit_code == 0


def test_a_job_that_cannot_be_recorded_ends_the_cluster(lab: Lab) -> None:
    lab.supervisor.refusal = "Ray does not answer"
    ended = lab.end()
    assert (str(ended), ended.exit_code) == ("job run cannot be started: Ray does not answer", 1)
