"""What rank 0 reads in a driver's log of the metric by which a job keeps its best step."""

from dataclasses import replace

import pytest
from node_inventories import node, run, step

from cloudrl.node.scores import Scores
from cloudrl.protocol.durable_jobs import Attempt, DurableJob, Score
from cloudrl.saves.aggregate import aggregate

METRIC = "val-core/openai/gsm8k/reward/mean@1"
JOB = DurableJob(
    "job", "night", "", {}, 0.0, world_size=2, keep=1, keep_best=METRIC, attempts=(Attempt(1, "job", "c", 0, 0.0),)
)


class Reading:
    """The log of a driver, with what `Scores` records and prints after reading it."""

    def __init__(self, folder):
        self.log, self.told, self.said = folder / "job-driver-job.log", [], []
        self.scores = Scores(lambda: folder, self.told.append, say=self.said.append)

    def write(self, *lines):
        with self.log.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def of(self, *steps, job=JOB):
        inventory = aggregate([node(0, run("night", *map(step, steps)))])
        return self.scores.of_all([job], inventory)[0].scores


@pytest.fixture
def reading(tmp_path):
    return Reading(tmp_path)


def test_values_are_read_as_verl_and_ray_print_them(reading):
    reading.write(
        "\x1b[36m(TaskRunnerV1 pid=20460)\x1b[0m step:10 - critic/score/mean:0.115 - "
        f"{METRIC}:0.25 - timing_s/step:2.5",
        f"step:20 - {METRIC}:np.float64(0.5) - x/y:1",
        f"step:30 - {METRIC}:nan - x/y:1",
        f"step:40 - x{METRIC}:9.5 - {METRIC}/std:9.5",
        f"the model says {METRIC}:99",
    )

    assert reading.of(10, 20, 30, 40) == (Score(10, 0.25, 10), Score(20, 0.5, 20))
    assert [event.submission_id for event in reading.told] == ["job"]
    assert reading.said == []


@pytest.mark.parametrize("text", ["nan", "np.float64(nan)", "inf", "-inf"])
def test_a_step_that_has_diverged_has_no_score_and_its_metric_was_logged(reading, text):
    reading.write(f"step:9 - {METRIC}:0.9", f"step:10 - {METRIC}:{text} - x/y:1", f"step:20 - {METRIC}:0.5")
    assert reading.of(10, 20) == (Score(20, 0.5, 20),)


def test_a_metric_that_was_only_nan_was_logged(reading):
    reading.write("step:10 - critic/score/mean:nan - x/y:1")
    assert reading.of(10, job=replace(JOB, keep_best="critic/score/mean")) == ()
    assert reading.said == []


def test_a_line_counts_once_it_is_whole(reading):
    reading.log.write_text(f"step:10 - {METRIC}:0.2")
    assert reading.of(10) == ()

    reading.write("5")
    assert reading.of(10) == (Score(10, 0.25, 10),)


def test_what_is_recorded_stays_when_the_log_is_gone_or_a_node_is_silent(reading):
    job = replace(JOB, scores=(Score(10, 0.9, 10),))

    assert reading.of(10, 20, job=job) == job.scores
    reading.write(f"step:20 - {METRIC}:0.95")
    partly = replace(aggregate([node(0, run("night", step(20)))]), silent=("node 1 says nothing",))
    assert reading.scores.of_all([job], partly) == [job]
    assert reading.told == []


def test_a_job_without_the_option_is_left_alone(reading):
    reading.write(f"step:10 - {METRIC}:0.25")

    assert reading.of(10, job=replace(JOB, keep_best="")) == ()
    assert reading.told == []


def test_a_metric_that_no_step_has_is_named_once_with_those_that_are_like_it(reading):
    job = replace(JOB, keep_best="critic/score/maen")
    reading.write("step:10 - critic/score/mean:0.1 - actor/entropy:1")

    assert reading.of(job=job) == ()
    assert reading.said == []  # nothing is saved yet
    assert reading.of(10, job=job) == reading.of(10, job=job) == ()
    [warning] = reading.said
    assert warning.startswith(
        "warning: job job: --keep-best: no step has logged critic/score/maen; verl logs critic/score/mean"
    )


def test_a_validation_may_come_later_than_a_save(reading):
    reading.write("step:10 - critic/score/mean:0.1")
    assert reading.of(10) == ()
    assert reading.said == []

    reading.write("step:20 - critic/score/mean:0.1 - val-core/gsm8k/reward/mean@1:0.5")
    assert reading.of(10, 20) == ()
    assert "verl logs val-core/gsm8k/reward/mean@1" in reading.said[0]
