"""The supervisor of rank 0 where a node is lost as a job fails, and where it takes the job that its cluster is for."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from cloudrl.durable.queue import Planned, Record
from cloudrl.durable.verdicts import RayEnd
from cloudrl.node.machinery import Machinery
from cloudrl.node.supervisor import Supervisor
from cloudrl.protocol.durable_jobs import DurableJob, Keeping, Result
from cloudrl.protocol.interruptions import Interruption
from cloudrl.protocol.job_phases import JobState

REQUEST = {"entrypoint": "train", "submission_id": "own", "runtime_env": {}, "metadata": {"job_name": "own"}}
JOB = DurableJob("own", "own", "", REQUEST, 0.0)


@dataclass
class Lab:
    """Ray with one job, two nodes with a journal, and a clock."""

    rows: list[dict[str, Any]] | None = field(default_factory=list)
    silence_s: float = 0.0
    now: float = 100.0
    said: list[str] = field(default_factory=list)
    state: JobState | None = None
    is_full: bool = False
    refusal: str | None = ""
    notices: dict[int, Interruption] = field(default_factory=dict)
    recorded: list[DurableJob] = field(default_factory=list)

    def __post_init__(self) -> None:
        machinery = Machinery(
            jobs=lambda: self.rows, submit=self.submit, stop=lambda _: None, record=self.record,
            plan=lambda job: Planned(job.job_id, 0), prepare=lambda _: None,
            end=lambda _job, row: RayEnd(row["status"], 1, "ValueError: no such row"),
            silence_s=lambda: self.silence_s, copies=2, hang=lambda: self.state,
            notices=lambda: dict(self.notices),
        )  # fmt: skip
        clock = lambda: self.now  # noqa: E731
        self.supervisor = Supervisor("start", "run", machinery, say=self.said.append, now=clock, clock=clock)

    def record(self, job: DurableJob) -> int:
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.recorded.append(job)
        return 2

    def submit(self, request: Any) -> str | None:
        assert self.rows is not None
        if self.refusal is None:
            return None
        self.rows.append({**request, "status": "RUNNING"})
        return ""

    def look(self, seconds: float = 1.0) -> DurableJob:
        self.now += seconds
        self.supervisor.look()
        return self.supervisor.jobs[0]


def test_a_failure_counts_once_all_nodes_have_been_heard_of_after_it() -> None:
    """Its node may be lost, which has another end: the cluster starts again, and the job resumes."""
    lab = Lab()
    lab.supervisor.take(JOB)
    while not lab.rows:
        lab.look()
    lab.rows[0]["status"] = "FAILED"
    lab.silence_s = 1.0
    lab.look()
    for _ in range(20):  # one node is silent all the time
        lab.silence_s += 1.0
        assert lab.look().outcome is None
    lab.silence_s = 0.0
    ended = lab.look().outcome
    assert ended is not None
    assert (ended.result, ended.reason) == (Result.FAILED, "ValueError: no such row")


def test_the_job_of_a_cluster_is_taken_once_and_not_before_ray_answers() -> None:
    lab = Lab(rows=None)
    lab.supervisor._now = lab.supervisor._clock = iter(range(0, 10**6, 50)).__next__
    lab.supervisor.take(JOB)
    assert lab.supervisor.refusal == "Ray does not answer"
    lab = Lab()
    lab.supervisor.take(JOB)
    lab.supervisor.take(JOB)
    assert [job.job_id for job in lab.supervisor.jobs] == ["own"]
    assert not lab.supervisor.refusal


def test_a_job_has_what_its_run_keeps_for_good_though_another_cluster_has_kept_it() -> None:
    lab = Lab()
    lab.supervisor.restore([replace(JOB, job_id="first", cluster_run="another", keep_every=4)])
    lab.supervisor.take(JOB)
    assert [(job.job_id, job.kept_before) for job in lab.supervisor.jobs] == [("own", (Keeping(every=4),))]


def test_a_job_that_comes_and_what_is_planned_for_it_are_looked_at_at_once() -> None:
    """A user who submits a job waits for it."""
    lab = Lab()
    lab.supervisor._pause(0.0)
    before = time.monotonic()
    lab.supervisor.accept(JOB)
    lab.supervisor._pause(600.0)
    lab.look()
    lab.supervisor._pause(600.0)
    lab.look()
    assert time.monotonic() - before < 300.0
    assert lab.rows is not None
    assert [row["submission_id"] for row in lab.rows] == ["own"]


def test_a_step_counts_once_the_next_one_runs() -> None:
    lab = Lab()
    lab.supervisor.take(JOB)
    lab.look()
    for step, ended in ((None, 0), (1, 0), (2, 1)):
        lab.state = JobState("own", "gen", 0.0, step=step)
        last = lab.look().last
        assert last is not None
        assert last.step == ended
    lab.state = JobState("another", "gen", 0.0, step=9)
    last = lab.look().last
    assert last is not None
    assert (last.step, last.first_step_at) == (1, lab.now - 1)


def test_no_call_says_that_a_job_is_stopped_before_that_is_recorded() -> None:
    """A cluster that is lost meanwhile would start it again."""
    lab = Lab()
    lab.supervisor.take(JOB)
    lab.look()
    lab.is_full = True
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            lab.supervisor.stop_job("own")
    assert lab.recorded[-1].outcome is None
    lab.is_full = False
    assert lab.supervisor.stop_job("own")
    ended = lab.recorded[-1].outcome
    assert ended is not None
    assert ended.result is Result.STOPPED


def test_a_stop_is_not_overwritten_by_an_older_record_that_still_waits() -> None:
    """Ray does not answer, so the record of a notice waits behind the submission; meanwhile a client stops the job."""
    lab = Lab()
    lab.supervisor.take(JOB)
    lab.refusal = None
    while len(lab.recorded) < 2:
        lab.look()
    lab.notices[1] = Interruption("AWS", "spot", lab.now + 120.0)
    lab.look()
    assert [action for action in lab.supervisor._to_do if isinstance(action, Record)]
    assert lab.supervisor.stop_job("own")
    stopped_at = len(lab.recorded) - 1
    lab.look()
    assert lab.supervisor.is_settled
    assert len(lab.recorded) > stopped_at + 1
    assert all(record.outcome is not None for record in lab.recorded[stopped_at:])
    assert lab.recorded[-1].attempts[-1].notice
