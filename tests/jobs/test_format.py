import json
import math
from dataclasses import asdict
from typing import Any

import pytest

from cloudrl.jobs import Ended, Line, Progress, Step
from cloudrl.jobs.format import as_fields, job_fields, mirror_text
from cloudrl.logs.causes import Cause
from cloudrl.protocol.mirrors import MirrorStatus
from cloudrl.transport.ray_job import JobStatus, RayJob


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress(12, 28, {"reward": 0.4121}, 2.06, 33.0), "step 12/28  reward 0.412  2.1 s/step  ETA 33 s"),
        (Progress(1, None, {}, None, None), "step 1"),
        (Progress(3, 3, {"reward": -0.5}, 61.0, 0.0), "step 3/3  reward -0.500  61.0 s/step  ETA 0 s"),
    ],
)
def test_progress_in_one_line(progress: Progress, text: str):
    assert str(progress) == text


def test_events_for_a_program():
    step = as_fields(Step(3, {"a": 1.5, "b": math.nan, "c": -math.inf}))
    assert step == {"event": "step", "step": 3, "metrics": {"a": 1.5, "b": None, "c": None}}
    progress = as_fields(Progress(3, 9, {"loss": 2.5}, 2.0, None))
    assert progress == {
        "event": "progress", "step": 3, "total_steps": 9, "reward": None, "loss": 2.5, "step_s": 2.0, "eta_s": None,
    }  # fmt: skip
    assert as_fields(Line("text")) == {"event": "line", "text": "text"}
    assert json.loads(json.dumps(as_fields(Ended(JobStatus.FAILED, "m", Cause("KeyError: 1", rank=1))))) == {
        "event": "ended",
        "status": "FAILED",
        "message": "m",
        "cause": {**asdict(Cause("KeyError: 1", rank=1)), "lines": [], "elsewhere": []},
    }


@pytest.mark.parametrize("variables", ["x", ["HF_TOKEN=abcdefg"], 5, {"HF_TOKEN": 12345678}, {"A": None}])
def test_a_job_whose_variables_are_of_another_form(variables: object):
    """Ray takes what a client sends it."""
    job = RayJob.read({"status": "RUNNING", "submission_id": "a", "runtime_env": {"env_vars": variables}})
    assert "12345678" not in json.dumps(job_fields(job))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "no step yet"),
        ({"step": 40, "mirrored_at": 800.0}, "step 40, 3 min 20 s ago"),
        (
            {"coming": 50, "size_bytes": 4_600_000_000, "sent_bytes": 1_000_000_000, "bytes_per_s": 200_000_000},
            "no step yet; step 50 on its way, 1.0 GB of 4.6 GB, 200 MB a second, 18 s left",
        ),
        (
            {"step": 40, "mirrored_at": 990.0, "coming": 50, "size_bytes": 5000, "error": "disk quota exceeded"},
            "step 40, 10 s ago; step 50 on its way, 0 B of 5.0 kB; held up: disk quota exceeded",
        ),
    ],
)
def test_how_far_a_mirror_is(fields: dict[str, Any], text: str):
    assert mirror_text(MirrorStatus("night", "/mnt/runs", **fields), 1000.0) == text
