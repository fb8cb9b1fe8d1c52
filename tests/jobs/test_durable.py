"""Jobs that are left with the agents: what is refused before, and how they are sent, followed and stopped."""

from dataclasses import replace

import pytest

import cloudrl
from cloudrl.errors import ConnectionFailed, InputError, Interrupted, JobFailed, WaitTimeout
from cloudrl.jobs.supervised import find_durable
from cloudrl.protocol.durable_jobs import Attempt, Outcome, Result, Verdict
from cloudrl.sdk.submission import follow, stop_job
from cloudrl.testing import FakeCluster
from cloudrl.transport.ray_job import JobStatus

JOB = cloudrl.recipe("grpo-tiny")


def _submit(fake, name="one", **options):
    return cloudrl.RunningCluster(fake.connection()).submit(JOB, durable=True, name=name, **options)


def test_it_is_recorded_with_what_a_resume_has_to_know():
    fake = FakeCluster(nodes=2)

    _submit(fake, steps=12)

    [left] = fake.durable_jobs.values()
    assert (left.run, left.world_size, left.total_steps, left.saves) == ("one", 2, 12, True)
    assert "trainer.resume_from_path" not in left.request["entrypoint"]
    assert ("POST", "/api/jobs/") not in fake.requests


def test_old_steps_are_the_agents_matter_and_not_verls():
    """verl removes old steps of one node, before it saves: one of them may be the only one that is safe."""
    fake = FakeCluster(nodes=2)

    _submit(fake, "two", overrides={"trainer.max_actor_ckpt_to_keep": 2, "trainer.max_critic_ckpt_to_keep": 2})
    _submit(fake, "all", overrides={"trainer.max_actor_ckpt_to_keep": None})

    two, everything = fake.durable_jobs.values()
    assert (two.keep, everything.keep) == (2, 0)
    assert "trainer.max_actor_ckpt_to_keep=null" in two.request["entrypoint"]
    assert "ckpt_to_keep=2" not in two.request["entrypoint"]


def test_steps_that_stay_for_good_are_the_agents_matter():
    fake, said = FakeCluster(nodes=2), []

    _submit(
        fake, keep_every=100, keep_best="min:val-core/x/mean@1", on_progress=lambda update: said.append(str(update))
    )
    _submit(fake, "three", keep_every=50, overrides={"trainer.max_actor_ckpt_to_keep": 3})

    both, three = fake.durable_jobs.values()
    assert (both.keep, both.keep_every, both.keep_best) == (2, 100, "min:val-core/x/mean@1")
    assert (three.keep, three.keep_every, three.keep_best) == (3, 50, "")
    assert "trainer.max_actor_ckpt_to_keep=null" in three.request["entrypoint"]
    note = "each step that is a multiple of 100 and the step with the lowest val-core/x/mean@1 for good"
    assert any("the newest 2 steps stay to go on from" in text and note in text for text in said)


@pytest.mark.parametrize(
    ("metric", "test_freq", "warning"),
    [
        ("val-core/gsm8k/reward/mean@1", 5, ""),
        ("val-core/gsm8k/reward/mean@1", -1, "comes from validations, and the job has none; trainer.test_freq=10"),
        ("critic/score/mean", -1, ""),
        ("critic/score/maen", -1, "is not among the metrics that cloudrl knows of verl: do you mean critic/score/mean"),
        ("actor/pg_loss", -1, "for the lowest: --keep-best min:actor/pg_loss"),
    ],
)
def test_a_metric_that_verl_may_never_log_is_told_before_the_job_is_sent(metric, test_freq, warning):
    fake, said = FakeCluster(nodes=2), []

    overrides = {"trainer.test_freq": test_freq}
    _submit(fake, keep_best=metric, overrides=overrides, on_progress=lambda update: said.append(str(update)))

    found = [text for text in said if "warning" in text and "--keep-best" in text]
    assert bool(found) == bool(warning)
    assert any(warning in text for text in found) or not warning


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_best": "min:"}, "names no metric"),
        ({"keep_best": "m", "overrides": {"trainer.logger": ["wandb"]}}, "has no console"),
    ],
)
def test_a_metric_that_cannot_be_read_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        _submit(FakeCluster(nodes=2), **options)


@pytest.mark.parametrize("option", [{"keep_every": 10}, {"keep_best": "critic/score/mean"}])
def test_only_the_agents_can_keep_steps_for_good(option):
    fake = FakeCluster(nodes=2)

    with pytest.raises(InputError, match="is for durable jobs alone") as refused:
        cloudrl.RunningCluster(fake.connection()).submit(JOB, name="one", durable=False, **option)

    assert "prune" in str(refused.value.hint)


def test_agents_that_would_remove_what_is_to_stay_get_no_job(monkeypatch):
    fake = FakeCluster(nodes=2)
    monkeypatch.setattr(
        "cloudrl.protocol.job_calls.submit_job", lambda agent, job: fake.durable_jobs.setdefault("x", job) and replace(
            job, keep_every=0
        )
    )  # fmt: skip

    with pytest.raises(InputError, match="older release"):
        _submit(fake, keep_every=10)


def test_its_package_goes_through_the_agents_and_not_to_ray(tmp_path):
    (tmp_path / "helper.py").write_text("ANSWER = 42\n")
    fake = FakeCluster(nodes=2)

    _submit(fake, working_dir=str(tmp_path))

    [left] = fake.durable_jobs.values()
    assert list(fake.files[left.package]) == [left.request["runtime_env"]["working_dir"].removeprefix("gcs://")]
    assert not fake.packages


def test_a_package_is_sent_again_when_the_connection_breaks(tmp_path, monkeypatch):
    (tmp_path / "helper.py").write_text("ANSWER = 42\n")
    monkeypatch.setattr("time.sleep", lambda _: None)
    fake, cuts = FakeCluster(nodes=2), ["content", "content"]

    def cut(method, path):
        if method == "PUT" and cuts and cuts[-1] in path:
            cuts.pop()
            raise ConnectionFailed("the connection broke")

    fake.on_request = cut
    _submit(fake, working_dir=str(tmp_path))

    [left] = fake.durable_jobs.values()
    assert not cuts
    assert sum(fake.files[left.package].values()) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overrides": {"trainer.resume_mode": "disable"}}, "it sets trainer.resume_mode"),
        ({"env": {"MY_TOKEN": "secret-of-this-test"}}, "MY_TOKEN would be in the nodes' memory alone"),
    ],
)
def test_what_would_not_come_back_is_refused(options, message):
    fake = FakeCluster(nodes=2)
    fake.status["facts"]["secrets_dir"] = "/dev/shm/x"

    with pytest.raises(InputError, match=message):
        _submit(fake, **options)

    assert not fake.durable_jobs


@pytest.mark.parametrize(
    ("again", "sentence"), [(True, "it saves before that, and starts again until"), (False, "nothing starts it again")]
)
def test_the_end_that_a_provider_sets_is_told_before_the_job_is_sent(again, sentence):
    fake = FakeCluster(nodes=2)
    fake.status["facts"] |= {"max_duration_s": 28800.0, "is_started_again": again}

    said = []
    _submit(fake, on_progress=lambda update: said.append(getattr(update, "text", "")))

    [told] = [line for line in said if "max_duration" in line]
    assert "8 h 00 min" in told
    assert sentence in told


def test_where_all_nodes_share_a_folder_the_command_may_say_where_it_goes_on():
    fake = FakeCluster(nodes=2)
    fake.status["facts"]["shared_checkpoints"] = True

    _submit(fake, overrides={"trainer.resume_mode": "disable"})

    [left] = fake.durable_jobs.values()
    assert left.chooses_step


def test_a_secret_that_the_cluster_has_itself_comes_back_with_it():
    fake = FakeCluster(nodes=2)
    fake.status["facts"] |= {"secrets_dir": "/dev/shm/x", "variables": ["MY_TOKEN"]}

    job = _submit(fake, env={"MY_TOKEN": "secret-of-this-test"})

    [left] = fake.durable_jobs.values()
    assert "/dev/shm" not in left.request["entrypoint"]
    assert "secret-of-this-test" not in str(left)
    assert "the job finds the cluster's own MY_TOKEN, also after a restart" in job.notes


def test_a_plain_ray_cluster_cannot_do_it():
    fake = FakeCluster(nodes=1)
    plain = replace(fake.connection(), agent_url=None, cluster_id=None)

    with pytest.raises(InputError, match="has no agents that could carry it through"):
        cloudrl.RunningCluster(plain).submit(JOB, durable=True)


def _again(fake, job, verdict, reason, result=None):
    """The agents have started another attempt, or given up."""
    left = fake.durable_jobs[job.submission_id]
    ended = replace(left.with_last(ended_at=1.0, verdict=verdict, reason=reason), outcome=None)
    if result is not None:
        fake.durable_jobs[job.submission_id] = replace(ended, outcome=Outcome(result, reason, 2.0))
        return
    second = Attempt(2, f"{job.submission_id}-2", "id-1", 4, 2.0, 3.0, Verdict.SUCCEEDED)
    outcome = Outcome(Result.SUCCEEDED, "", 3.0)
    fake.durable_jobs[job.submission_id] = replace(ended, attempts=(*ended.attempts, second), outcome=outcome)
    fake.add(second.submission_id, b"step:5 - critic/score/mean:0.5\n", "SUCCEEDED")


def test_all_attempts_are_followed():
    fake, said = FakeCluster(nodes=2), []
    job = _submit(fake)
    fake.end(job.submission_id, "FAILED", "the driver was killed")
    _again(fake, job, Verdict.INFRASTRUCTURE, "its driver was killed (SIGKILL)")

    progress = follow(job, on_progress=said.append)

    assert progress.step == 5
    assert [(attempt.number, attempt.from_step) for attempt in job.attempts()] == [(1, 0), (2, 4)]


def test_it_has_ended_once_the_agents_do_not_try_it_again():
    fake = FakeCluster(nodes=2)
    job = _submit(fake)
    fake.end(job.submission_id, "FAILED", "the driver was killed")
    fake.durable_jobs[job.submission_id] = replace(fake.durable_jobs[job.submission_id], outcome=None)
    with pytest.raises(WaitTimeout, match="is still RUNNING"):
        job.wait(timeout_s=0)

    _again(fake, job, Verdict.INFRASTRUCTURE, "its driver was killed (SIGKILL)")

    assert job.wait() is JobStatus.SUCCEEDED
    assert job.result().succeeded
    assert job.exception() is None


def test_one_that_waits_is_waited_for_and_its_end_is_told():
    fake = FakeCluster(nodes=2)
    job = _submit(fake)
    _wait(fake, job)
    with pytest.raises(WaitTimeout):
        job.wait(timeout_s=0)

    outcome = Outcome(Result.FAILED, "run 'one' cannot go on: step 3 lacks rank 1", 2.0)
    fake.durable_jobs[job.submission_id] = replace(fake.durable_jobs[job.submission_id], outcome=outcome)

    assert job.wait() is JobStatus.FAILED
    assert "step 3 lacks rank 1" in str(job.exception())


def test_behind_another_job_it_waits_with_the_agents_and_not_here():
    fake = FakeCluster(nodes=2)
    first = _submit(fake)
    ray = cloudrl.RunningCluster(fake.connection())

    second = ray.submit(JOB, durable=True, name="two", after=first.submission_id)

    assert list(fake.durable_jobs) == [first.submission_id, second.submission_id]
    with pytest.raises(InputError, match="nowhere"):
        ray.submit(JOB, durable=True, name="three", after="nowhere")


def test_the_end_for_good_is_the_end_of_following():
    fake = FakeCluster(nodes=2)
    job = _submit(fake)
    fake.end(job.submission_id, "FAILED", "ValueError: no such row")
    _again(fake, job, Verdict.PROGRAM, "ValueError: no such row", Result.FAILED)

    with pytest.raises(JobFailed, match="no such row"):
        follow(job)


def _wait(fake, job):
    """The job is in the queue, and Ray does not know it."""
    fake.durable_jobs[job.submission_id] = replace(fake.durable_jobs[job.submission_id], attempts=())
    del fake.jobs[job.submission_id]


def test_one_that_waits_is_found_and_stopped():
    fake, said = FakeCluster(nodes=2), []
    _wait(fake, _submit(fake))
    [left] = fake.durable_jobs

    job = cloudrl.RunningCluster(fake.connection()).job(left)
    status = stop_job(job, confirm=lambda _question: True, on_progress=lambda notice: said.append(notice.text))

    assert status is JobStatus.STOPPED
    assert said == [f"{left} was waiting, and does not start any more"]
    assert find_durable(fake.connection(), left).outcome.result is Result.STOPPED


def test_a_stop_is_for_good():
    fake = FakeCluster(nodes=2)
    job = _submit(fake)

    assert stop_job(job, confirm=lambda _question: True) is JobStatus.STOPPED
    assert find_durable(fake.connection(), job.submission_id).outcome.result is Result.STOPPED


def test_the_newest_attempt_is_meant_by_the_id_of_the_job():
    fake = FakeCluster(nodes=2)
    job = _submit(fake)
    _again(fake, job, Verdict.INFRASTRUCTURE, "lost")
    ray = cloudrl.RunningCluster(fake.connection())

    assert ray.job(job.submission_id).submission_id == f"{job.submission_id}-2"
    assert ray.job(f"{job.submission_id}-2").submission_id == f"{job.submission_id}-2"


def test_one_that_ended_before_its_first_attempt_says_where_to_look():
    fake = FakeCluster(nodes=2)
    job = _submit(fake)
    _wait(fake, job)
    outcome = Outcome(Result.FAILED, "run 'one' cannot go on: step 3 lacks rank 1", 2.0)
    fake.durable_jobs[job.submission_id] = replace(fake.durable_jobs[job.submission_id], outcome=outcome)

    with pytest.raises(JobFailed, match="step 3 lacks rank 1") as failure:
        follow(job)

    assert failure.value.hint == "cloudrl checkpoints list --cluster lab"


def test_prompts_that_fail_one_after_the_other_are_a_warning_while_the_job_is_followed():
    fake, told = FakeCluster(nodes=2), []
    failing = "Error in _run_prompt for uid=1\nValueError: no rubric\n" * 25
    fake.add("one", f"{failing}step:1 - timing_s/step:1.0\n{failing}".encode(), "SUCCEEDED")

    follow(cloudrl.RunningCluster(fake.connection()).job("one"), on_progress=told.append)

    warnings = [update for update in told if str(getattr(update, "text", "")).startswith("warning: 20 prompts")]
    assert ["the last one of ValueError: no rubric" in warning.text for warning in warnings] == [True]


@pytest.fixture
def fake():
    return FakeCluster(nodes=2)


def _by_default(fake, name, **options):
    return cloudrl.RunningCluster(fake.connection()).submit(JOB, name=name, **options)


def test_by_default_the_agents_have_the_job_where_nothing_prevents_it(fake):
    job, before = _by_default(fake, "one"), FakeCluster(nodes=2)
    before.status["facts"]["divides_nodes"] = False
    other = _by_default(before, "one")

    assert list(fake.durable_jobs) == [job.submission_id]
    assert not [note for note in job.notes if "not started again" in note]
    assert [note for note in other.notes if "the agents of cluster 'lab' are of an older release" in note]


def test_a_second_job_starts_now_or_not_at_all_unless_it_is_to_wait(fake):
    first = _by_default(fake, "one")

    with pytest.raises(InputError, match=f"job {first.submission_id} is training on this cluster") as refused:
        _by_default(fake, "two")
    second = _by_default(fake, "two", durable=True)
    third = _by_default(fake, "three", after=first.submission_id)

    assert "When it has ended: --queue" in str(refused.value.hint)
    assert list(fake.durable_jobs) == [first.submission_id, second.submission_id, third.submission_id]


def test_a_queue_that_has_not_ended_is_not_joined_unasked(fake):
    first = _by_default(fake, "one")
    _wait(fake, first)
    waiting = replace(fake.durable_jobs[first.submission_id], waits_for="attempt 1 ended: the cluster was lost")
    fake.durable_jobs[first.submission_id] = waiting

    with pytest.raises(InputError, match="waits in the queue of cluster lab: attempt 1 ended") as refused:
        _by_default(fake, "two")
    _by_default(fake, "two", durable=False)

    assert "Behind it: --queue" in str(refused.value.hint)
    assert list(fake.durable_jobs) == [first.submission_id]


def test_beside_a_program_of_somebody_it_starts_now_without_the_agents(fake):
    fake.add("eval", entrypoint="python3 evaluate.py")

    job = _by_default(fake, "one")

    assert not fake.durable_jobs
    assert [note for note in job.notes if "job eval runs on the cluster" in note]


def test_a_job_that_ray_does_not_know_yet_has_a_status_and_can_be_stopped(fake):
    job = _by_default(fake, "one")
    _wait(fake, job)

    assert job.status().status is JobStatus.PENDING
    with pytest.raises(InputError, match="has no log: it starts when the jobs before it have ended"):
        list(job.logs())
    assert not job.done()
    assert job.cancel()
    assert job.status().status is JobStatus.STOPPED
    assert job.done()
    assert not job.cancel()


def test_between_two_attempts_it_is_not_done(fake):
    job = _by_default(fake, "one")
    fake.end(job.submission_id, "FAILED", "the driver was killed")
    assert job.waits_for() == ""
    ended = fake.durable_jobs[job.submission_id]
    fake.durable_jobs[job.submission_id] = replace(
        ended, outcome=None, waits_for="attempt 1 ended: the driver was killed"
    )

    assert job.status().status is JobStatus.FAILED
    assert not job.done()
    assert job.waits_for() == "attempt 1 ended: the driver was killed"


@pytest.mark.parametrize(
    ("durable", "sentence"),
    [(None, "starts again by itself if a machine is lost"), (False, "does not start again if a machine is lost")],
)
def test_whoever_goes_away_is_told_whether_the_job_goes_on(fake, durable, sentence):
    job = _by_default(fake, "one", durable=durable)
    fake.write(job.submission_id, b"step:1 - critic/score/mean:0.5\n")

    def leave(_update):
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=f"{job.submission_id} keeps running without this computer, and {sentence}"):
        follow(job, on_progress=leave)
