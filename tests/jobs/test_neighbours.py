"""Jobs that a new one would stop are found before it is sent, and one can wait for another."""

from typing import Any

import pytest
from fake_cluster import FakeCluster
from planning import prepare
from typed_command import Run

from cloudrl import jobs, recipes
from cloudrl.errors import InputError, Interrupted
from cloudrl.jobs import JobHandle, SubmitOptions, send
from cloudrl.jobs.neighbours import ClusterJobs, wait_for_end
from cloudrl.sdk.running import RunningCluster

JOB = recipes.load("grpo-tiny")
VERL = "python3 -m verl.trainer.main_ppo trainer.nnodes=2"
OTHER_PROGRAM = JOB.replace(entrypoint=("bash", "train.sh"))


def _send(cluster: FakeCluster, job: Any = JOB, **options: Any) -> tuple[JobHandle, list[str]]:
    told: list[Any] = []
    submission = prepare(cluster.connection(), job, SubmitOptions(**options))
    sent = send(cluster.connection(), submission, on_progress=told.append)
    return sent, [each.text for each in told if hasattr(each, "text")]


def _queue(job_id: str, state: str = "ALIVE") -> dict[str, str]:
    return {"name": "TransferQueueController", "state": state, "job_id": job_id, "class_name": "X"}


class TestAJobThatWouldStopAnother:
    @pytest.mark.parametrize(("durable", "later"), [(None, "--queue\n"), (False, "--after first\n")])
    def test_is_refused_with_the_reason_and_two_ways_out(
        self, cluster: FakeCluster, durable: bool | None, later: str
    ) -> None:
        cluster.add("first", entrypoint=VERL)
        with pytest.raises(InputError, match="job first is training on this cluster, and a second one") as caught:
            _send(cluster, durable=durable)
        assert "TransferQueue" in caught.value.message
        hint = str(caught.value.hint)
        assert f"When it has ended: {later}" in hint
        assert "--cluster NAME" in hint
        assert "--name" not in hint
        assert [*cluster.jobs] == ["first"], "nothing was sent"

    @pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED", "STOPPED"])
    def test_is_sent_when_that_one_has_ended(self, cluster: FakeCluster, status: str) -> None:
        cluster.add("first", entrypoint=VERL, status=status)
        sent, _ = _send(cluster)
        assert sent.submission_id in cluster.jobs

    @pytest.mark.parametrize(
        "entrypoint", [f"{VERL} trainer.use_v1=False", "python3 eval.py", "python3 -m cloudrl.checkpoints"]
    )
    def test_is_sent_beside_one_that_has_no_queue(self, cluster: FakeCluster, entrypoint: str) -> None:
        cluster.add("first", entrypoint=entrypoint)
        _send(cluster)
        assert len(cluster.jobs) == 2

    def test_is_sent_beside_one_with_an_older_verl(self, cluster: FakeCluster) -> None:
        cluster.add("first", entrypoint=VERL, metadata={"cloudrl_verl": "0.8.0"})
        _send(cluster)
        assert len(cluster.jobs) == 2

    def test_without_a_queue_of_its_own_is_sent(self, cluster: FakeCluster) -> None:
        cluster.add("first", entrypoint=VERL)
        _send(cluster, overrides={"trainer.use_v1": False}, unchecked=True)
        assert len(cluster.jobs) == 2

    def test_says_so_where_its_command_does_not_tell(self, cluster: FakeCluster) -> None:
        cluster.add("first", entrypoint=VERL)
        _, told = _send(cluster, OTHER_PROGRAM)
        assert any(text.startswith("job first is training; if this one starts verl, it stops that") for text in told)


class TestAQueueOfWhichNoCommandTells:
    def test_of_a_script(self, cluster: FakeCluster) -> None:
        cluster.add("script", entrypoint="bash train.sh")
        cluster.actors = [_queue("", "DEAD"), _queue(_job_id(cluster, "script"))]
        with pytest.raises(InputError, match="job script is training on this cluster"):
            _send(cluster)

    def test_of_a_program_that_was_not_submitted(self, cluster: FakeCluster) -> None:
        cluster.actors = [_queue("ff000000")]
        with pytest.raises(InputError, match="a program that was not submitted as a job is training"):
            _send(cluster)

    @pytest.mark.parametrize("state", ["DEAD", "ALIVE"])
    def test_of_a_job_that_has_just_ended(self, cluster: FakeCluster, state: str) -> None:
        """Ray takes a moment to end its actors."""
        cluster.add("script", entrypoint="bash train.sh", status="FAILED")
        cluster.actors = [_queue(_job_id(cluster, "script"), state)]
        _send(cluster)


def _job_id(cluster: FakeCluster, submission_id: str) -> str:
    return str(cluster.connection().ray().get_job(submission_id).job_id)


class TestTwoAtTheSameTime:
    def test_the_later_one_withdraws(self, cluster: FakeCluster) -> None:
        submission = prepare(cluster.connection(), JOB, SubmitOptions(submission_id="mine"))
        cluster.on_submit = lambda _id: None
        cluster.add("theirs", entrypoint=VERL)
        on_cluster = ClusterJobs(cluster.connection().ray())
        cluster.add("mine", entrypoint=submission.entrypoint)
        with pytest.raises(InputError, match="job theirs was submitted to this cluster a moment before"):
            on_cluster.withdraw_if_late(submission)
        assert (cluster.jobs["mine"].status, cluster.jobs["theirs"].status) == ("STOPPED", "RUNNING")

    def test_the_earlier_one_goes_on(self, cluster: FakeCluster) -> None:
        submission = prepare(cluster.connection(), JOB, SubmitOptions(submission_id="mine"))
        cluster.add("mine", entrypoint=submission.entrypoint)
        cluster.add("theirs", entrypoint=VERL)
        ClusterJobs(cluster.connection().ray()).withdraw_if_late(submission)
        assert {job.status for job in cluster.jobs.values()} == {"RUNNING"}


class TestAfter:
    @pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED"])
    def test_is_sent_once_the_other_has_ended(self, cluster: FakeCluster, status: str) -> None:
        cluster.add("first", entrypoint=VERL)
        told: list[Any] = []

        def tell(update: Any) -> None:
            told.append(getattr(update, "text", ""))
            if "waiting for the end" in told[-1]:
                assert [*cluster.jobs] == ["first"]
                cluster.end("first", status)

        sent = RunningCluster(cluster.connection()).submit(JOB, after="first", durable=False, on_progress=tell)
        assert [*cluster.jobs] == ["first", sent.submission_id]
        assert "waiting for the end of job first; keep this command running" in told
        assert f"job first has ended: {status}" in told

    def test_one_that_has_ended_is_not_waited_for(self, cluster: FakeCluster) -> None:
        cluster.add("first", entrypoint=VERL, status="STOPPED")
        RunningCluster(cluster.connection()).submit(JOB, after="first")
        assert len(cluster.jobs) == 2

    def test_a_mistake_is_told_before_the_wait(self, cluster: FakeCluster) -> None:
        cluster.add("first", entrypoint=VERL)
        with pytest.raises(InputError, match=r"trainer\.nnodes"):
            RunningCluster(cluster.connection()).submit(JOB, {"trainer.nnodes": 5}, after="first")

    def test_an_unknown_one(self, cluster: FakeCluster) -> None:
        with pytest.raises(InputError, match="nothing"):
            RunningCluster(cluster.connection()).submit(JOB, after="nothing")

    def test_by_its_url_and_not_by_that_of_another_cluster(self, cluster: FakeCluster) -> None:
        cluster.add("first", entrypoint=VERL, status="SUCCEEDED")
        lab = cluster.connection()
        wait_for_end(lab, jobs.find_job(lab, "first").url, on_progress=lambda _: None)
        with pytest.raises(InputError, match="ray://elsewhere/first is not a job of cluster"):
            wait_for_end(lab, "ray://elsewhere/first", on_progress=lambda _: None)

    def test_ctrl_c(self, cluster: FakeCluster) -> None:
        cluster.add("first", entrypoint=VERL)

        def interrupt(_job: JobHandle) -> None:
            raise KeyboardInterrupt

        with pytest.raises(Interrupted, match="job first, which keeps running; nothing was submitted"):
            wait_for_end(cluster.connection(), "first", on_progress=lambda _: None, wait=interrupt)

    def test_as_it_is_typed(self, cluster: FakeCluster, run: Run) -> None:
        cluster.add("first", entrypoint=VERL, status="SUCCEEDED")
        words = ("submit", "grpo-tiny", *PATHS, "--no-wait", "--submission-id")
        done = run(*words, "second", "--after", "first").ended(0)
        assert "job first has ended: SUCCEEDED" in done.err
        run(*words, "third").ended(2, "--after second")


PATHS = (
    "data.train_files=/d/train.parquet", "data.val_files=/d/test.parquet", "actor_rollout_ref.model.path=/m",
    "trainer.default_local_dir=/c/run",
)  # fmt: skip
