"""What `cloudrl jobs status` shows of a job's command."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloudrl.cli.jobs import _facts
from cloudrl.jobs.format import attempt_fields, attempt_rows, job_fields
from cloudrl.protocol.durable_jobs import Attempt, Verdict
from cloudrl.transport.ray_job import JobStatus, RayJob


@pytest.mark.parametrize(
    ("entrypoint", "shown"),
    [
        ("python3 -m mine 'data.system=Be brief, and kind' a=1", "python3 -m mine, and 2 overrides: cloudrl jobs "),
        ("echo 'a", "echo 'a"),
    ],
)
def test_the_command(entrypoint: str, shown: str) -> None:
    job = RayJob("one", JobStatus.RUNNING, entrypoint=entrypoint)
    assert dict(_facts(job, job_fields(job)))["command"].startswith(shown)


def test_each_attempt_and_what_the_way_back_took() -> None:
    lost = Attempt(1, "one", "c1", 0, 50.0, 410.0, Verdict.INFRASTRUCTURE, "the cluster was lost")
    attempts = (
        replace(lost, saved_step=4, step=5, step_at=100.0),
        Attempt(2, "one-2", "c2", 4, 420.0, 588.0, step=5, step_at=549.0, first_step_at=549.0),
        Attempt(3, "one-3", "c2", 5, 600.0),
    )
    assert attempt_rows(attempts) == [
        ("1", "the beginning", "5", "infrastructure: the cluster was lost", ""),
        ("2", "step 4", "5", "", "after 5 min 20 s, first step 2 min 09 s later; 1 step again"),
        ("3", "step 5", "", "", "after 12 s"),
    ]
    first, second, _ = attempt_fields(attempts)
    assert second["recovery"] == {"start_s": 320.0, "program_s": 129.0, "lost_steps": 1}
    assert "recovery" not in first
