"""The phases of a training: on the wire, for a person, and held against verl's own timers."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from cloudrl.protocol.job_phases import Blame, Grade, Hang, JobPhase, JobState, phase_text
from cloudrl.protocol.wire import from_json, to_json


def test_what_is_sent_comes_back():
    blame = Blame(1, "WorkerDict", "is stopped (state T)", 30, "10.0.0.7", "save_checkpoint", "save (mine.py:3)")
    hang = Hang(Grade.PROOF, 1000.0, 70.0, 60.0, (blame,), "1 other rank waits in barrier", "Do this", "hang.txt")
    state = JobState("one", JobPhase.GEN.value, 900.0, 40.0, 7, hang)
    assert from_json(JobState, to_json(state)) == state


def test_a_phase_for_a_person():
    state = JobState("one", "gen", 1000.0, usual_s=40.0)
    assert phase_text(state, 1123.0) == "gen for 2 min 03 s, usually 40 s"
    assert phase_text(JobState("one", "switch_wait", 1000.0), 1005.0) == "switch_wait for 5 s"


@pytest.mark.verl
def test_the_phases_of_a_step_are_timers_of_verl():
    spec = find_spec("verl")
    assert spec is not None
    assert spec.origin is not None
    trainers = (Path(spec.origin).parent / "trainer" / "ppo" / "v1").glob("trainer_*.py")
    timers = {name for file in trainers for name in re.findall(r'marked_timer\("(\w+)"', file.read_text())}
    ours = [str(phase) for phase in JobPhase]
    assert set(ours[ours.index("gen") :]) - timers == set()
