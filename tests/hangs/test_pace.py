"""How long the step that runs still takes, and a save: what a notice of a cloud leaves time for."""

from cloudrl.hangs.limits import PhaseTimes
from cloudrl.hangs.watch import HangWatch, Sample


def _sample(at: float) -> Sample:
    return Sample(at, at, "gen", 0.0, moves=True)


def test_a_step_that_was_seen_to_begin_has_the_rest_of_its_usual_time_left() -> None:
    times = PhaseTimes()
    for seconds in (100.0, 110.0, 400.0):
        times.add("step", seconds)
    watch = HangWatch(times)
    watch.note_step(7, 0.0)
    assert watch.left_in_step_s(0.0) == 0.0, "it may have begun long before this agent looked"
    watch.add(_sample(0.0))
    watch.note_step(8, 50.0)
    watch.note_step(8, 80.0)
    assert watch.left_in_step_s(80.0) == 80.0
    assert watch.left_in_step_s(200.0) == 0.0, "it takes longer than usual"


def test_the_first_step_that_ends_is_the_beginning_of_the_second() -> None:
    times = PhaseTimes()
    watch = HangWatch(times)
    watch.note_step(None, 0.0)
    watch.add(_sample(0.0))
    watch.note_step(1, 30.0)
    assert watch.left_in_step_s(30.0) == 0.0, "no step was measured"
    times.add("step", 60.0)
    assert watch.left_in_step_s(40.0) == 50.0
