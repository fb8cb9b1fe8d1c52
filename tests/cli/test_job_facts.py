"""What `cloudrl jobs status` shows of a job's command."""

from __future__ import annotations

import pytest

from cloudrl.cli.jobs import _facts
from cloudrl.jobs.format import job_fields
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
