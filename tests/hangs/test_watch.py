"""From samples to a suspicion and a hang: stillness, late phases, debuggers, suspended machines, clocks that jump."""

import pytest

from cloudrl.hangs.limits import PhaseTimes
from cloudrl.hangs.watch import HangWatch, Sample, Verdict
from cloudrl.protocol.job_phases import Grade
from cloudrl.protocol.job_work import EndedPhase

START = 1000.0


def known(phase: str, *seconds: float) -> HangWatch:
    times = PhaseTimes()
    for duration in seconds:
        times.add(phase, duration)
    return HangWatch(times)


def play(
    watch: HangWatch,
    seconds: float,
    *,
    phase: str = "update_actor",
    begin: float = START,
    moves: bool = False,
    is_paused: bool = False,
    is_starved: bool = False,
    exact: str | None = None,
) -> Verdict:
    """Samples each 5 s of one phase; the last verdict."""
    verdict = Verdict()
    for tick in range(int(seconds / 5) + 1):
        at = begin + 5 * tick
        sample = Sample(at, at, phase, begin, moves, is_paused=is_paused, is_starved=is_starved)
        verdict = watch.add(sample, exact_phase=exact)
    return verdict


def test_a_healthy_phase():
    assert play(known("update_actor", 30, 30, 30), 55) == Verdict(False, None, 55, 120, is_unusual=True)


def test_still_for_a_minute_is_a_suspicion_and_for_two_a_hang():
    watch = known("update_actor", 30, 30, 30)
    verdict = play(watch, 100)
    assert (verdict.is_suspicious, verdict.grade) == (True, None)
    verdict = play(known("update_actor", 30, 30, 30), 125)
    assert (verdict.grade, verdict.still_s, verdict.limit_s) == (Grade.STILL, 125, 120)


def test_what_moves_is_late_only_after_the_limit_of_its_phase():
    assert play(known("update_actor", 30, 30, 30), 700, moves=True).grade is None
    verdict = play(known("update_actor", 30, 30, 30), 730, moves=True)
    assert (verdict.grade, verdict.limit_s) == (Grade.LATE, 720)


def test_a_first_validation_is_not_judged():
    assert play(HangWatch(PhaseTimes()), 20_000, phase="init", exact="testing").grade is None
    assert play(HangWatch(PhaseTimes()), 1000, phase="init").grade is Grade.STILL


def test_nothing_hangs_while_a_debugger_waits():
    watch = known("update_actor", 30, 30, 30)
    assert play(watch, 3000, is_paused=True) == Verdict(False, None, 0, 120)
    at = START + 3005
    after = watch.add(Sample(at, at, "update_actor", START, moves=False))
    assert after.grade is None
    assert not after.is_suspicious


@pytest.mark.parametrize(("passed_s", "by_the_clock_s"), [(600, 600), (5, 3600), (5, -3600)])
def test_a_suspended_machine_and_a_clock_that_was_set_begin_anew(passed_s: float, by_the_clock_s: float):
    watch = known("update_actor", 30, 30, 30)
    play(watch, 100)
    at, now = START + 100 + passed_s, START + 100 + by_the_clock_s
    assert watch.add(Sample(at, now, "update_actor", START, moves=False)).still_s == 0


def test_phases_that_ended_teach_their_durations_and_stillness():
    watch = HangWatch(PhaseTimes())
    play(watch, 40, phase="gen")
    at = START + 45
    watch.add(Sample(at, at, "gen", START, moves=True))
    ended = (EndedPhase(1, "gen", 46.0), EndedPhase(2, "adv", 0.1))
    watch.add(Sample(at + 5, at + 5, "update_actor", at + 1, moves=True, ended=ended))
    watch.add(Sample(at + 10, at + 10, "save_checkpoint", at + 9, moves=True, ended=ended))
    assert watch.times.seconds == {"gen": [46.0], "adv": [0.1]}
    assert watch.times.still_s == {"gen": 40.0, "adv": 0.0}


def test_a_phase_that_was_stopped_by_a_debugger_teaches_nothing():
    watch = HangWatch(PhaseTimes())
    play(watch, 5, phase="gen")
    play(watch, 500, phase="gen", is_paused=True)
    at = START + 505
    watch.add(Sample(at, at, "adv", at, moves=True, ended=(EndedPhase(1, "gen", 503.0), EndedPhase(2, "ref", 1.0))))
    assert watch.times.seconds == {"ref": [1.0]}


def test_what_was_still_to_its_end_teaches_its_stillness():
    watch = HangWatch(PhaseTimes())
    play(watch, 400, phase="update_weights")
    at = START + 405
    watch.add(Sample(at, at, "step", at, moves=True, ended=(EndedPhase(1, "update_weights", 402.0),)))
    assert watch.times.still_s == {"update_weights": 400.0}


def test_a_first_validation_is_looked_at_before_its_start_counts_as_late():
    watch = HangWatch(PhaseTimes())
    assert not play(watch, 2600, phase="init", moves=True).is_suspicious
    for passed_s in range(2605, 7000, 5):
        at = START + passed_s
        sample = Sample(at, at, "init", START, moves=True)
        verdict = watch.add(sample, exact_phase="testing" if passed_s > 2750 else None)
    assert verdict == Verdict(True, None, 0, 900, is_unjudged=True, is_long=True)


def test_whoever_was_kept_waiting_does_not_begin_anew():
    watch = known("update_actor", 30, 30, 30)
    play(watch, 100)
    watch.was_kept_waiting(START + 200, START + 200)
    at = START + 205
    assert watch.add(Sample(at, at, "update_actor", START, moves=False)).grade is Grade.STILL


def test_a_stillness_that_has_ended_by_itself_is_not_unusual():
    times = PhaseTimes()
    times.add("gen", 400.0, still_s=200.0)
    assert not play(HangWatch(times), 195, phase="gen").is_unusual
    assert play(HangWatch(times), 205, phase="gen").is_unusual


def test_where_the_cpus_are_taken_stillness_is_a_suspicion_and_no_hang():
    verdict = play(known("update_actor", 30, 30, 30), 300, is_starved=True)
    assert (verdict.is_suspicious, verdict.grade) == (True, None)
    assert play(known("update_actor", 30, 30, 30), 800, is_starved=True).grade is Grade.LATE
