"""A job at one moment, by what its log, Ray, its nodes and their price have said."""

import json
from dataclasses import replace

import pytest

from cloudrl.jobs import Ended, Line, Progress
from cloudrl.jobs.look import JobRecord, Look, Price, look_fields
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.report import NodeReport, Usage
from cloudrl.transport.ray_job import JobStatus, RayJob
from cloudrl.verl.metrics import Step

NODE = NodeReport(0, "10.0.0.1", phase=Phase.READY)


@pytest.fixture
def record() -> JobRecord:
    return JobRecord("ray://lab/one")


def progress(eta_s: float | None) -> Progress:
    return Progress(step=2, total_steps=4, metrics={"reward": 0.5}, step_s=2.0, eta_s=eta_s)


def test_before_anybody_has_said_anything(record: JobRecord):
    assert record.look(100.0) == Look("ray://lab/one", JobStatus.UNKNOWN)


def test_how_long_it_has_been_running(record: JobRecord):
    record.add_status(RayJob("one", JobStatus.RUNNING, start_time=40.0))
    assert (record.look(100.0).status, record.look(100.0).seconds) == (JobStatus.RUNNING, 60.0)

    record.add_status(RayJob("one", JobStatus.SUCCEEDED, start_time=40.0, end_time=90.0))
    assert record.look(100.0).seconds == 50.0


def test_the_end_of_the_log_counts_more_than_an_earlier_answer(record: JobRecord):
    record.add_status(RayJob("one", JobStatus.RUNNING))
    record.add_event(Ended(JobStatus.FAILED, "why"))
    assert record.look(0.0).status is JobStatus.FAILED


def test_the_steps_of_earlier_attempts_go_on(record: JobRecord):
    record.add_steps([Step(1, {"a": 0.1, "timing_s/step": 1.0}), Step(2, {"a": 0.2, "timing_s/step": 1.0})])
    record.add_event(Step(2, {"a": 0.3, "timing_s/step": 1.0}))

    assert [(step.step, step.metrics["a"]) for step in record.look(0.0).steps] == [(1, 0.1), (2, 0.3)]


def test_the_log_ends_without_colours_and_empty_lines(record: JobRecord):
    for number in range(100):
        record.add_event(Line(f"\x1b[36m(TaskRunnerV1 pid=9)\x1b[0m line {number}  "))
        record.add_event(Line("  "))

    lines = record.look(0.0).lines
    assert (len(lines), lines[-1]) == (60, "line 99")


def test_a_notice_lasts_until_something_comes(record: JobRecord):
    record.notice = "the connection broke"
    assert record.look(0.0).notice == "the connection broke"
    record.add_event(Line("go on"))
    assert record.look(0.0).notice == ""

    record.notice = "the connection broke"
    record.add_status(RayJob("one", JobStatus.RUNNING))
    assert record.look(0.0).notice == "", "its log is silent, and Ray answers"


def test_what_it_has_cost_and_will_cost(record: JobRecord):
    record.price = Price(10.0, 36.0, at=1000.0)
    assert (record.look(1100.0).cost, record.look(1100.0).cost_at_end) == (11.0, None)

    record.add_event(progress(eta_s=200.0))
    assert (record.look(1100.0).cost, record.look(1100.0).cost_at_end) == (11.0, 13.0)


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.STOPPED, JobStatus.SUCCEEDED])
def test_what_has_ended_has_no_time_left(record: JobRecord, status: JobStatus):
    record.price = Price(10.0, 36.0, at=1000.0)
    record.add_event(progress(eta_s=200.0))
    record.add_event(Ended(status, ""))

    look = record.look(1100.0)
    assert (look.progress, look.cost, look.cost_at_end) == (progress(eta_s=None), 11.0, None)


def test_no_price(record: JobRecord):
    record.add_event(progress(eta_s=200.0))
    assert (record.look(0.0).cost, record.look(0.0).cost_at_end) == (None, None)


def test_failed_calls_are_counted_by_step(record: JobRecord):
    failed = Line("(AgentLoopWorker pid=7) Error executing tool 'search': 'q' [repeated 3x across cluster]")
    record.add_event(failed)
    record.add_event(Step(1, {"timing_s/step": 2.0}))
    assert record.look(0.0).warnings == ()

    record.add_event(failed)
    assert [each.kind for each in record.look(0.0).warnings] == ["tools"]


def test_a_disk_is_watched_over_several_samples(record: JobRecord):
    for minutes, used in enumerate([60, 60, 80]):
        usage = Usage(600.0 * minutes, disk_used_bytes=used, disk_total_bytes=100)
        record.add_nodes([replace(NODE, usage=usage)])
        record.add_nodes([replace(NODE, usage=usage)])  # the same sample, asked for twice

    look = record.look(0.0)
    assert look.nodes[0].usage == usage
    assert [each.kind for each in look.warnings] == ["disk"]


def test_a_node_that_is_gone_warns_of_nothing(record: JobRecord):
    full = Usage(1.0, disk_used_bytes=97, disk_total_bytes=100)
    record.add_nodes([NODE, replace(NODE, rank=1, usage=full)])
    assert [each.kind for each in record.look(0.0).warnings] == ["disk"]

    record.add_nodes([NODE])
    assert record.look(0.0).warnings == ()


def test_it_is_json(record: JobRecord):
    record.add_event(progress(eta_s=None))
    record.add_nodes([replace(NODE, usage=Usage(1.0, disk_used_bytes=97, disk_total_bytes=100))])
    record.price = Price(1.0, 2.0, at=0.0)

    fields = json.loads(json.dumps(look_fields(record.look(0.0)), allow_nan=False))

    assert (fields["event"], fields["status"], fields["progress"]["step"]) == ("look", "UNKNOWN", 2)
    assert (fields["nodes"][0]["rank"], fields["warnings"][0]["kind"]) == (0, "disk")
