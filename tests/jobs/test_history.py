import pytest
from fake_cluster import FakeCluster

from cloudrl.jobs import JobHandle, find_job
from cloudrl.jobs.history import earlier_steps, find_attempts, joined, read_steps
from cloudrl.verl.metrics import Step


def trained(number: int, reward: float = 0.0, **others: float) -> Step:
    return Step(number, {"critic/score/mean": reward, "timing_s/step": 2.0, **others})


def validated(number: int, accuracy: float) -> Step:
    return Step(number, {"val": accuracy})


def test_a_resumed_attempt_replaces_what_was_trained_beyond_its_checkpoint():
    first = [validated(0, 0.1), *(trained(n, 0.1) for n in range(1, 8))]
    second = [trained(n, 0.2) for n in (5, 6)]

    series = joined([first, second])

    assert [step.step for step in series] == [0, 1, 2, 3, 4, 5, 6]
    assert [step.reward for step in series[1:]] == [0.1] * 4 + [0.2] * 2


def test_the_validation_of_a_resumed_attempt_is_added_to_its_step():
    series = joined([[trained(1, 0.1), trained(2, 0.2), trained(3, 0.3)], [validated(2, 0.9), trained(3, 0.4)]])

    assert series == (trained(1, 0.1), trained(2, 0.2, val=0.9), trained(3, 0.4))


def test_a_step_that_is_trained_again_keeps_no_old_value():
    assert joined([[trained(1, 0.1, val=0.5)], [trained(1, 0.2)]]) == (trained(1, 0.2),)


def test_a_validation_and_its_step_in_two_lines():
    assert joined([[validated(1, 0.5), trained(1, 0.1)]]) == (trained(1, 0.1, val=0.5),)


@pytest.mark.parametrize("attempts", [[], [[]], [[], []]])
def test_nothing_yet(attempts: list[list[Step]]):
    assert joined(attempts) == ()


def line(number: int, reward: float) -> str:
    return f"\x1b[36m(TaskRunnerV1 pid=9)\x1b[0m step:{number} - critic/score/mean:{reward} - timing_s/step:2.0\n"


@pytest.fixture
def job(cluster: FakeCluster) -> JobHandle:
    """The third job of a cluster, and the second attempt of its run; a fourth follows."""
    run = {"job_name": "run", "cloudrl_checkpoints": "/c/run"}
    cluster.add("run-1", "".join(line(n, 0.1) for n in (1, 2, 3)).encode(), metadata=run)
    cluster.add("other-1", line(9, 0.9).encode(), metadata={"job_name": "run", "cloudrl_checkpoints": "/d/run"})
    cluster.add("run-2", "".join(line(n, 0.2) for n in (3, 4)).encode(), metadata=run)
    cluster.add("run-3", line(1, 0.3).encode(), metadata=run)
    for each in cluster.jobs:
        cluster.end(each)
    return find_job(cluster.connection(), "run-2")


@pytest.mark.io
def test_the_attempts_of_a_run_are_its_jobs(job: JobHandle):
    assert [each.submission_id for each in find_attempts(job)] == ["run-1", "run-2"]
    assert joined([earlier_steps(job), read_steps(job.logs())]) == (
        trained(1, 0.1),
        trained(2, 0.1),
        trained(3, 0.2),
        trained(4, 0.2),
    )


@pytest.mark.io
def test_an_attempt_whose_log_went_with_its_node_is_left_out(cluster: FakeCluster, job: JobHandle):
    cluster.jobs["run-1"].node_ip = "10.0.0.9"
    assert earlier_steps(job) == ()
    assert joined([earlier_steps(job), read_steps(job.logs())]) == (trained(3, 0.2), trained(4, 0.2))
