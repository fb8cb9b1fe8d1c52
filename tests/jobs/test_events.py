import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.jobs.events import EventReader, Line, Progress
from cloudrl.verl.metrics import Step


def step_line(step: int, reward: float, seconds: float) -> str:
    metrics = f"critic/score/mean:{reward} - timing_s/step:{seconds}"
    return f"\x1b[36m(TaskRunnerV1 pid=9)\x1b[0m step:{step} - {metrics}"


def progress(lines: list[str], total_steps: int | None = None) -> list[Progress]:
    return [event for event in EventReader(total_steps).read(lines) if isinstance(event, Progress)]


def test_a_line_comes_before_what_it_says():
    line = step_line(1, 0.25, 2.0)
    assert list(EventReader(3).read(["hello", line])) == [
        Line("hello"),
        Line(line),
        Step(1, {"critic/score/mean": 0.25, "timing_s/step": 2.0}),
        Progress(step=1, total_steps=3, metrics={"reward": 0.25}, step_s=2.0, eta_s=None),
    ]


def test_a_line_is_read_with_the_names_of_files_that_were_sent():
    sent = f"/tmp/r/working_dir_files/_ray_pkg_{'0a' * 16}/rows.py"
    line = Line(f'\x1b[36m(W pid=9)\x1b[0m   File "{sent}", line 3')
    assert line.readable == '\x1b[36m(W pid=9)\x1b[0m   File "./rows.py", line 3'
    assert f"{line}" == '(W pid=9)   File "./rows.py", line 3'


def test_the_pace_is_that_of_the_last_five_steps_without_the_first_which_warms_up():
    lines = [step_line(n, 0.1, seconds) for n, seconds in enumerate([50, 2, 2, 2, 2, 2, 3], start=1)]
    reports = progress(lines, total_steps=10)
    assert [report.step_s for report in reports] == pytest.approx([50, 2, 2, 2, 2, 2, 2.2])
    assert (reports[0].eta_s, reports[1].eta_s) == (None, 8 * 2)
    assert reports[-1].eta_s == pytest.approx(3 * 2.2)


def test_the_pace_counts_validation_and_saving_as_seldom_as_they_come():
    every = "timing_s/gen:1 - timing_s/step:2"
    saved = "timing_s/gen:1 - timing_s/save_checkpoint:3 - timing_s/step:5 - timing_s/testing:7"
    reports = progress([f"step:{n} - {saved if n in (5, 10) else every}" for n in range(1, 11)], total_steps=20)
    assert reports[3].step_s == 2
    assert reports[4].step_s == 2 + 10 / 5, "a step of five"
    assert reports[8].step_s == pytest.approx(2 + 10 / 9)
    assert (reports[9].step_s, reports[9].eta_s) == (2 + 20 / 10, 10 * 4)


def test_the_total_as_the_log_says_it():
    bar = "(TaskRunnerV1 pid=9) Training Progress:   4%|# | 1/28 [00:05<02:20,  5.2s/it]"
    before, after = progress([step_line(1, 0.1, 2), bar, step_line(2, 0.1, 2)])
    assert (before.total_steps, before.eta_s) == (None, None)
    assert (after.total_steps, after.eta_s) == (28, 52.0)


def test_a_run_that_goes_beyond_its_total():
    assert progress([step_line(5, 0.1, 2)], total_steps=3)[0].eta_s == 0


def test_a_validation_is_no_progress():
    events = list(EventReader().read(["step:0 - val-core/x/mean@1:0.5"]))
    assert [type(event) for event in events] == [Line, Step]


def test_a_fine_tuning_has_a_loss_in_place_of_a_reward():
    # verl 0.9.1, trainer/sft_trainer.py
    lines = ["Total training steps: 9", "step:1 - train/loss:2.5 - train/grad_norm:1.0 - train/lr:1e-05"]
    events = list(EventReader().read([*lines, "step:1 - val/loss:2.0"]))
    assert [type(event) for event in events] == [Line, Line, Step, Progress, Line, Step]
    assert events[3] == Progress(1, 9, {"loss": 2.5}, None, None)
    assert str(events[3]) == "step 1/9  loss 2.500"


def test_numbers_that_are_none():
    report = progress(["step:3 - critic/score/mean:nan - timing_s/step:inf"], total_steps=9)[0]
    assert (report.reward, report.step_s, report.eta_s) == (None, None, None)


@given(st.lists(st.text() | st.integers(0, 99).map(lambda n: step_line(n, n / 7, n)), max_size=20))
def test_every_line_is_there_once_in_its_order(lines: list[str]):
    events = list(EventReader().read(lines))
    assert [event.text for event in events if isinstance(event, Line)] == lines
    assert all(event.step_s is None or math.isfinite(event.step_s) for event in events if isinstance(event, Progress))


def test_each_event_is_a_readable_line():
    line = "\x1b[36m(TaskRunnerV1 pid=9)\x1b[0m create worker group dict_keys(['actor_rollout'])"
    events = EventReader(9).read([line, "step:1 - critic/score/mean:0.25 - timing_s/step:2.0"])
    assert [str(event) for event in events] == [
        "(TaskRunnerV1 pid=9) create worker group dict_keys(['actor_rollout'])",
        "loading the model",
        "step:1 - critic/score/mean:0.25 - timing_s/step:2.0",
        "step 1: reward 0.250, 2.0 s, 2 metrics",
        "step 1/9  reward 0.250  2.0 s/step",
    ]
