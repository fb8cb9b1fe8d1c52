"""Series for a page: time, parts of a step, and fewer points."""

import json
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_report import make_steps

from cloudrl.report.series import charts_of, elapsed_seconds, run_series, thinned
from cloudrl.verl.metrics import Step

NAN = math.nan


def test_time_goes_on_while_it_validates():
    longer = {"timing_s/step": 2.0, "timing_s/testing": 5.0}
    steps = [Step(0, {"val-core/a": 0.1}), Step(1, {"timing_s/step": 2.0}), Step(2, longer)]
    assert elapsed_seconds(steps) == [0.0, 2.0, 9.0]


def test_time_by_part_has_the_longest_first_and_the_rest_last():
    timers = {"step": 10.0, "gen": 4.0, "update_actor": 5.0}
    time = run_series([Step(1, {f"timing_s/{name}": seconds for name, seconds in timers.items()})], 1, frozenset())[
        "time"
    ]
    assert time == {"steps": [1], "per_bar": 1, "parts": {"update": [5], "rollout": [4], "other": [1]}}


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=500), st.integers(2, 100))
def test_thinning_keeps_the_peaks(values: list[float], limit: int):
    kept = thinned(values, limit)
    assert kept == sorted(set(kept))
    assert len(kept) <= max(limit, 3)
    assert kept[-1] == len(values) - 1
    assert {min(values), max(values)} <= {values[each] for each in kept}


def test_a_key_that_is_rare_names_its_steps():
    steps = [Step(1, {"a": 1.0}), Step(2, {"a": 2.0, "val": 0.5}), Step(3, {"a": NAN})]
    series = run_series(steps, 1, frozenset())
    assert series["steps"] == [1, 2, 3]
    assert series["series"] == {"a": {"v": [1, 2], "i": [0, 1]}, "val": {"v": [0.5], "i": [1]}}


def test_of_many_steps_the_first_keys_keep_more_points():
    series = run_series(make_steps(3000, keys=30), 1, frozenset({"critic/score/mean"}))
    assert len(series["series"]["critic/score/mean"]["v"]) == 3000
    assert len(series["series"]["actor/lr"]["v"]) <= 1000
    assert series["time"]["per_bar"] == 10
    assert len(series["time"]["steps"]) == 300


def test_the_summary_is_of_all_steps():
    def step(number: int) -> Step:
        saving = 50.0 if number % 10 == 0 else 0.0
        values = {"critic/score/mean": 0.5, "val-core/a": 1 / number, "timing_s/step": 10 + number / 1e5 + saving}
        return Step(number, values)

    steps = [step(number) for number in range(1, 10_000)]
    steps += [Step(10_000, {"critic/score/mean": 0.25, "val-core/a": NAN, "timing_s/step": 10.0})]
    summary = run_series(steps, 1, frozenset())["summary"]
    trained_s = sum(step.step_s or 0.0 for step in steps)
    assert summary.pop("trained_s") == pytest.approx(trained_s, abs=0.1)
    assert summary == {"reward": 0.25, "best": 0.5, "validation": 0.00010001, "step_s": 10.056}
    assert set(run_series([Step(1, {"a": NAN})], 1, frozenset())["summary"].values()) == {None}


def test_the_greatest_float_stays_finite():
    steps = [Step(1, {"a": sys.float_info.max})]
    json.dumps(run_series(steps, 1, frozenset()), allow_nan=False)


def test_a_long_run_of_many_metrics_fits_in_a_page():
    size = len(json.dumps(run_series(make_steps(10_000), 1, frozenset({"critic/score/mean"}))))
    assert size < 3_000_000


@pytest.mark.parametrize(
    ("keys", "titles"),
    [
        ([], []),
        (["critic/score/mean", "other"], ["Reward"]),
        (["val-core/a/b/acc/mean@1", "val-core/c"], ["Validation"]),
        (["actor/entropy", "actor/ppo_kl"], ["KL divergence", "Entropy"]),
    ],
)
def test_panels_are_those_of_which_there_is_something(keys: list[str], titles: list[str]):
    assert [panel.title for panel in charts_of(keys)] == titles


def test_a_band_is_of_keys_that_are_there():
    [reward] = charts_of(["critic/score/mean", "critic/score/max"])
    assert reward.band == ("critic/score/max",)
