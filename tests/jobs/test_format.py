import json
import math
from dataclasses import asdict

import pytest

from cloudrl.jobs import Ended, Line, Progress, Step
from cloudrl.jobs.format import as_fields, job_fields
from cloudrl.logs.causes import Cause
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
