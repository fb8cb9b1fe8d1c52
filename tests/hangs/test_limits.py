"""How long phases may take and be still, and no false alarm in thousands of hours of healthy training."""

from statistics import median

import pytest
from healthy_runs import PROFILES, Played

from cloudrl.hangs.limits import RULES, PhaseTimes
from cloudrl.protocol.job_phases import JobPhase


def taken(phase: str, *seconds: float, still_s: float = 2.0) -> PhaseTimes:
    times = PhaseTimes()
    for duration in seconds:
        times.add(phase, duration, still_s)
    return times


def test_each_phase_has_a_rule():
    assert set(RULES) == {str(phase) for phase in JobPhase}


def test_a_phase_that_never_ended_has_more_time():
    times = PhaseTimes()
    assert (times.limit_s("update_actor"), times.still_limit_s("update_actor")) == (10800, 900)
    assert times.usual_s("update_actor") is None


def test_limits_follow_what_the_phase_took():
    times = taken("update_actor", 30, 31, 33, 29)
    assert (times.usual_s("update_actor"), times.limit_s("update_actor")) == (30.5, 720)
    assert times.still_limit_s("update_actor") == 120
    times = taken("gen", 900, 1000, 5000, still_s=200)
    assert (times.limit_s("gen"), times.still_limit_s("gen")) == (10000, 600)
    assert taken("testing", 1000).limit_s("testing") == 5000  # one duration is no median


def test_phases_of_other_trainers_have_the_rule_of_a_step():
    assert PhaseTimes().limit_s("switch_wait") == RULES["step"].first_s
    assert taken("switch_wait", 4.0).still_limit_s("switch_wait") == 330


def test_the_memory_is_bounded():
    times = taken("gen", *range(1, 101))
    for number in range(200):
        times.add(f"phase-{number}", 1.0)
    assert len(times.seconds["gen"]) == 32
    assert len(times.seconds) == 64


def test_what_is_kept_is_read_again():
    times = taken("gen", 3.0, 4.0, still_s=2.5)
    assert PhaseTimes.from_json(times.to_json()) == times


@pytest.mark.parametrize(
    "kept", [None, [], {"seconds": 3}, {"seconds": {"gen": ["x", True, -1, float("nan")]}, "still_s": {"gen": 5}}]
)
def test_what_is_damaged_teaches_nothing(kept: object):
    assert PhaseTimes.from_json(kept) == PhaseTimes()


def simulate(hours: float) -> tuple[list[tuple[str, float]], float]:
    played = [Played(name, hours) for name in PROFILES]
    return [alarm for run in played for alarm in run.false_alarms], median(d for run in played for d in run.delays_s)


def test_healthy_training_of_400_hours():
    alarms, delay_s = simulate(50)
    assert alarms == []
    assert delay_s <= 120


@pytest.mark.slow
@pytest.mark.timeout(3600)  # 150 s of CPU time, which take long beside other programs
def test_healthy_training_of_8000_hours():
    alarms, delay_s = simulate(1000)
    assert len(alarms) <= 2, alarms
    assert delay_s <= 120
