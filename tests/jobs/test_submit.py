import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_clock import Clock
from fake_cluster import FakeCluster
from planning import prepare, submit

from cloudrl import jobs, recipes, testing
from cloudrl.errors import ConnectionFailed, InputError
from cloudrl.jobs import Submission, SubmitOptions, send
from cloudrl.jobs.submit import submit_once
from cloudrl.protocol.exchange import Request, Response
from cloudrl.transport import Connection

JOB = recipes.load("grpo-tiny")
PATHS = {
    "data.train_files": "/d/train.parquet",
    "data.val_files": "/d/test.parquet",
    "actor_rollout_ref.model.path": "/m",
    "trainer.default_local_dir": "/c/run",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print()")
    return tmp_path


def test_what_the_dry_run_shows_is_what_ray_gets(cluster: FakeCluster, folder: Path):
    lab, options = cluster.connection(), SubmitOptions(durable=False, working_dir=str(folder), steps=3, env={"A": "1"})
    submission = prepare(lab, JOB, options)
    assert {method for method, _ in cluster.requests} == {"GET"}, "a dry run only looks"
    job = send(lab, submission)
    assert cluster.jobs[job.submission_id].body == submission.request()
    assert list(cluster.packages) == [submission.runtime_env["working_dir"].removeprefix("gcs://")]
    assert job.checkpoint_dir == f"/vol/checkpoints/{job.name}"
    assert job.total_steps == 3
    assert job.notes == submission.notes


def test_nothing_is_read_before_it_is_known_that_it_can_go(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    row = {"prompt": [], "data_source": "openai/gsm8k", "reward_model": {"ground_truth": "1"}}
    (tmp_path / "small.jsonl").write_text(json.dumps(row))
    with (tmp_path / "large.jsonl").open("wb") as file:
        file.truncate(2**28 + 1)  # the reading of so much is told
    told: list[Any] = []

    def prepared(name: str) -> Submission:
        options = SubmitOptions(durable=False, overrides={**PATHS, "data.val_files": name})
        plain = Connection(cluster.url, cluster.url, cluster.token)
        snapshot = jobs.take_snapshot(plain, JOB, options, {})
        return jobs.prepare(JOB, options, snapshot, on_progress=told.append)

    with pytest.raises(InputError, match="has room for"):
        prepared("./large.jsonl")
    assert told == []
    [upload] = prepared("./small.jsonl").uploads
    assert f"./small.jsonl (84 B) -> {upload.to}, in the package" in [each.text for each in told]


def test_a_package_that_is_there_is_not_sent_again(cluster: FakeCluster, folder: Path):
    job = submit(cluster.connection(), JOB, SubmitOptions(durable=False, working_dir=str(folder)))
    cluster.end(job.submission_id)
    cluster.requests.clear()
    submit(cluster.connection(), JOB, SubmitOptions(durable=False, working_dir=str(folder), submission_id="two"))
    assert "PUT" not in {method for method, _ in cluster.requests}


def test_progress_of_an_upload_also_for_the_agent_that_does_not_see_it(cluster: FakeCluster, folder: Path):
    (folder / "noise").write_bytes(os.urandom(2_500_000))
    told: list[Any] = []
    submission = prepare(cluster.connection(), JOB, SubmitOptions(durable=False, working_dir=str(folder)))
    job = send(cluster.connection(), submission, on_progress=told.append)
    assert [each.done_bytes for each in told[:-1]] == [2**20, 2**21, told[-2].total_bytes]
    assert told[-1] == job
    assert cluster.requests.count(("POST", "/v1/transfers")) == 3


def test_two_at_the_same_time_with_one_id(cluster: FakeCluster):
    submission = prepare(cluster.connection(), JOB, SubmitOptions(durable=False, submission_id="mine"))

    def taken_meanwhile(method: str, path: str) -> None:
        if (method, path) == ("POST", "/api/jobs/"):
            cluster.add("mine")

    cluster.on_request = taken_meanwhile
    with pytest.raises(InputError, match="submission id 'mine' is taken"):
        send(cluster.connection(), submission)


class TestALostAnswer:
    """The connection breaks right after Ray has taken the job, or right before."""

    @pytest.fixture
    def submission(self, cluster: FakeCluster) -> Submission:
        return prepare(cluster.connection(), JOB, SubmitOptions(durable=False, submission_id="mine"))

    def breaks(self, cluster: FakeCluster, *, before: int = 0, after: int = 0) -> Connection:
        """So many of the next submissions do not get there, and of so many after them the answer is lost."""
        lab, left = testing.FakeCluster.connection(cluster), [*["before"] * before, *["after"] * after]

        def sent(request: Request) -> Response:
            breaks = left.pop(0) if (request.method, request.url[-10:]) == ("POST", "/api/jobs/") and left else ""
            if breaks != "before":
                answer = cluster.send(request)
            if breaks:
                raise ConnectionFailed("cut off")
            return answer

        return replace(lab, send=sent)

    @pytest.mark.parametrize(("before", "after"), [(0, 1), (2, 0), (1, 1)])
    def test_the_job_is_there_once(
        self, cluster: FakeCluster, submission: Submission, clock: Clock, before: int, after: int
    ):
        lab, told = self.breaks(cluster, before=before, after=after), list[ConnectionFailed]()
        submit_once(lab.ray(), submission, on_break=told.append, clock=clock, sleep=clock.sleep)
        assert cluster.jobs["mine"].body == submission.request()
        assert [each.message for each in told] == ["cut off"]

    def test_it_may_get_there_while_it_is_sent_again(self, cluster: FakeCluster, submission: Submission, clock: Clock):
        lab, request = self.breaks(cluster, before=1), dict(submission.request())
        del request["submission_id"]

        def late(method: str, path: str) -> None:
            if (method, path) == ("POST", "/api/jobs/"):
                cluster.add("mine", **request)

        cluster.on_request = late
        submit_once(lab.ray(), submission, clock=clock, sleep=clock.sleep)
        assert cluster.jobs["mine"].body["metadata"] == request["metadata"]

    def test_a_look_that_fails_is_no_end_of_it(self, cluster: FakeCluster, submission: Submission, clock: Clock):
        """The first answer is lost, the second says that the id is taken, and whose it is is not said at once."""
        lab, request, looks = self.breaks(cluster, before=1), submission.request(), list[str]()
        del request["submission_id"]

        def late(method: str, path: str) -> None:
            if (method, path) == ("POST", "/api/jobs/"):
                cluster.add("mine", **request)
            if (method, path) == ("GET", "/api/jobs/") and "mine" in cluster.jobs and len(looks) < 2:
                looks.append(path)
                raise ConnectionFailed("cut off")

        cluster.on_request = late
        submit_once(lab.ray(), submission, clock=clock, sleep=clock.sleep)
        assert len(looks) == 2

    def test_it_is_said_where_nobody_answers_any_more(self, cluster: FakeCluster, submission: Submission, clock: Clock):
        with pytest.raises(ConnectionFailed, match="cut off; it is not known whether job mine is there") as caught:
            submit_once(self.breaks(cluster, before=99).ray(), submission, clock=clock, sleep=clock.sleep)
        assert "cloudrl jobs status ray://lab/mine" in str(caught.value)
        assert 60 <= clock.now < 70

    def test_an_id_that_another_has_taken_meanwhile_is_no_answer(
        self, cluster: FakeCluster, submission: Submission, clock: Clock
    ):
        lab = self.breaks(cluster, before=1)
        clock.on_sleep = lambda: cluster.add("mine")
        with pytest.raises(InputError, match="submission id 'mine' is taken"):
            submit_once(lab.ray(), submission, clock=clock, sleep=clock.sleep)


def test_a_package_that_the_cluster_loses(cluster: FakeCluster, folder: Path):
    cluster.on_request = lambda method, _path: cluster.packages.clear() if method == "GET" else None
    with pytest.raises(InputError, match="and then lost it"):
        submit(cluster.connection(), JOB, SubmitOptions(durable=False, working_dir=str(folder)))
    assert not cluster.jobs


def test_never_the_wrong_cluster(cluster: FakeCluster):
    with pytest.raises(ConnectionFailed, match=r"belongs to cluster 'lab' \(id-1\), not to 'mine' \(id-2\)"):
        submit(replace(cluster.connection(), name="mine", cluster_id="id-2"), JOB)
    assert not cluster.jobs


def test_never_to_the_dashboard_of_another_cluster(cluster: FakeCluster, folder: Path):
    """A Ray without tokens, behind the port that was ours; the agent is ours."""
    cluster.status["facts"]["ray_session"] = "session_y"
    with pytest.raises(ConnectionFailed, match="lab runs Ray session_y, this is session_x") as caught:
        submit(cluster.connection(), JOB, SubmitOptions(durable=False, working_dir=str(folder)))
    assert "cloudrl attach lab" in str(caught.value.hint)
    assert not cluster.jobs
    assert not cluster.packages
