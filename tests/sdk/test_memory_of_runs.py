"""What a run has needed of memory, beside what was estimated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudrl.jobs import Ended, Step
from cloudrl.jobs.memory_runs import keep_run, read_runs
from cloudrl.report import RunReport
from cloudrl.sdk.callbacks import Notice
from cloudrl.sdk.report import _with_memory
from cloudrl.sdk.submission import follow_attempt
from cloudrl.transport.ray_job import JobStatus
from cloudrl.verl.memory.runs import RunMemory
from cloudrl.verl.metrics import Metrics

STEP = Step(1, Metrics({
    "perf/max_memory_allocated_gb": 28.8, "perf/max_memory_reserved_gb": 33.5, "prompt_length/mean": 90.0,
    "response_length/mean": 210.0,
}))  # fmt: skip
ESTIMATE = RunMemory("grpo-1", "grpo", "Qwen/Qwen2.5-7B", "1 x 8 x H100", (28.0, 28.7, 34.0))
SENTENCE = "training used at most 28.8 GiB of a GPU (reserved 33.5); estimated were 28.7 (28.0 to 34.0)"


class FollowedJob:
    """A job whose log has one step."""

    submission_id, url = "grpo-1", "ray://lab/grpo-1"

    def __init__(self, *steps: Step) -> None:
        self.steps = steps

    def follow(self, **_: Any) -> Iterator[Step | Ended]:
        yield from self.steps
        yield Ended(JobStatus.SUCCEEDED, "")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path))
    return tmp_path


def followed(*steps: Step) -> list[str]:
    told: list[Any] = []
    job: Any = FollowedJob(*steps)
    follow_attempt(job, on_progress=told.append)
    return [each.text for each in told if isinstance(each, Notice)]


@pytest.mark.usefixtures("home")
def test_the_end_of_a_job_shows_both_and_keeps_both() -> None:
    keep_run(ESTIMATE)
    assert followed(STEP) == [f"memory: {SENTENCE}"]
    [run] = read_runs()
    assert (run.recipe, run.allocated_gib, run.answer_tokens) == ("grpo", 28.8, 210)


@pytest.mark.usefixtures("home")
def test_a_job_that_reports_no_memory_is_not_kept() -> None:
    assert followed(Step(1, Metrics({"critic/score/mean": 0.5}))) == []
    assert read_runs() == ()


@pytest.mark.usefixtures("home")
def test_a_job_without_an_estimate_is_not_kept() -> None:
    """On CPUs verl reports the memory of a process."""
    assert followed(STEP) == []
    assert read_runs() == ()


@pytest.mark.usefixtures("home")
def test_the_report_has_a_table_of_both() -> None:
    keep_run(ESTIMATE)
    [table] = _with_memory(RunReport("grpo", "ray://lab/grpo-1", steps=(STEP,))).tables
    assert table.title == "Memory of training"
    assert dict(table.rows) == {
        "most allocated": "28.8", "most reserved": "33.5", "estimated by check": "28.7 (28.0 to 34.0)",
    }  # fmt: skip
    [other] = _with_memory(RunReport("grpo", "ray://lab/other", steps=(STEP,))).tables
    assert dict(other.rows) == {"most allocated": "28.8", "most reserved": "33.5"}
    assert _with_memory(RunReport("grpo", "ray://lab/none")).tables == ()
