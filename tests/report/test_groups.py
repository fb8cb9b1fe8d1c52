"""Runs of one group: which they are, and their mean and spread."""

import json
import math
from dataclasses import replace
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_report import make_group, make_run, make_steps

from cloudrl.report import Report, RunReport
from cloudrl.report.groups import Spread, group_series, groups_of
from cloudrl.verl.metrics import Step

CONFIG = {"algorithm.adv_estimator": "grpo", "data.train_files": "/a/cluster/gsm8k/train.parquet"}


def make(name: str, group: str = "", **config: str) -> RunReport:
    keys = {key.replace("__", "."): value for key, value in config.items()}
    return RunReport(name, f"ray://lab/{name}", config={**CONFIG, **keys}, group=group)


def members(*runs: RunReport) -> list[tuple[str, tuple[int, ...]]]:
    return [(group.name, group.places) for group in groups_of(runs)]


@pytest.mark.parametrize(
    "key",
    [
        "data__seed", "actor_rollout_ref__actor__data_loader_seed", "actor_rollout_ref__rollout__seed",
        "trainer__experiment_name", "trainer__default_local_dir", "trainer__validation_data_dir",
        "trainer__resume_mode",
    ],
)  # fmt: skip
def test_runs_that_differ_in_a_seed_or_a_name_are_one_group(key: str):
    assert members(make("grpo-1", **{key: "1"}), make("grpo-2", **{key: "2"})) == [("grpo", (0, 1))]


def test_verl_repeats_the_name_of_a_run_under_other_keys():
    runs = (make(name, trainer__experiment_name=name, a__trace__experiment_name=name) for name in ("grpo-1", "grpo-2"))
    assert members(*runs) == [("grpo", (0, 1))]


@pytest.mark.parametrize("key", ["actor_rollout_ref__actor__optim__lr", "data__train_files", "seed__of_what"])
def test_runs_that_differ_in_more_are_not(key: str):
    assert members(make("a", **{key: "1"}), make("b", **{key: "2"})) == []


def test_each_cluster_has_its_own_folder_for_the_same_data():
    there = make("grpo-2", data__train_files="/another/cluster/gsm8k/train.parquet")
    assert members(make("grpo-1"), there) == [("grpo", (0, 1))]
    assert members(make("grpo-1"), make("grpo-2", data__train_files="/a/cluster/math/train.parquet")) == []


@pytest.mark.parametrize(
    "models",
    [
        ("/checkpoints/first/global_step_9/actor/huggingface", "/checkpoints/second/global_step_9/actor/huggingface"),
        ("/data/models/first/merged/final", "/data/models/second/merged/final"),
    ],
)
def test_models_in_folders_of_one_name_are_two(models: tuple[str, str]):
    runs = [
        make(f"grpo-{at}", actor_rollout_ref__model__path=model, trainer__default_local_dir=f"/checkpoints/grpo-{at}")
        for at, model in enumerate(models)
    ]
    assert members(*runs) == []


def test_what_is_below_the_folders_of_two_clusters_is_compared():
    runs = [
        make(
            f"grpo-{at}",
            data__train_files=f"/home/me/clusters/{cluster}/data/gsm8k/train.parquet",
            trainer__default_local_dir=f"/home/me/clusters/{cluster}/checkpoints/grpo-{at}",
        )
        for at, cluster in enumerate(("one", "two"))
    ]
    assert members(*runs) == [("grpo", (0, 1))]


def test_a_label_makes_a_group_of_any_runs_and_divides_equal_ones():
    runs = (make("a", "x"), make("b", "x", data__x="1"), make("c"), make("d"), make("e", "y"))
    assert members(*runs) == [("x", (0, 1)), ("c and 1 more", (2, 3))]


def test_two_jobs_of_one_run_are_no_repetition_of_it():
    one, other = (make(name, trainer__default_local_dir="/c/run") for name in ("run (1)", "run (2)"))
    assert members(one, other) == []


def test_runs_without_a_configuration_are_not_compared():
    empty = [RunReport(name, name) for name in "ab"]
    assert members(*empty) == []


@pytest.mark.parametrize(
    ("names", "group"),
    [
        (("seed-1", "seed-2", "seed-10"), "seed"),
        (("lr_a", "lr_b"), "lr"),
        (("run (1)", "run (2)"), "run"),
        (("grpo", "grpo-2"), "grpo and 1 more"),
        (("one", "two", "three"), "one and 2 more"),
        (("grpo-20261126-1239", "grpo-20261126-1311"), "grpo-20261126"),
    ],
)
def test_a_group_is_called_what_its_names_have_in_common(names: tuple[str, ...], group: str):
    assert members(*map(make, names)) == [(group, tuple(range(len(names))))]


def test_groups_of_one_name_are_told_apart():
    runs = [make(name, data__x=x) for name, x in (("a-1", "1"), ("a-2", "1"), ("a-3", "2"), ("a-4", "2"))]
    assert [group.name for group in groups_of(runs)] == ["a (1)", "a (2)"]


@given(st.lists(st.floats(-1e100, 1e100), min_size=2, max_size=20))
def test_the_spread_is_that_of_statistics(values: list[float]):
    spread = Spread.of(values)
    scale = max(map(abs, values))
    assert spread.mean == pytest.approx(fmean(values), rel=1e-9, abs=1e-9 * scale)
    assert spread.sd == pytest.approx(stdev(values), rel=1e-6, abs=1e-9 * scale)
    assert (spread.low, spread.high, spread.n) == (min(values), max(values), len(values))


def with_steps(name: str, *rows: dict[str, float]) -> RunReport:
    return replace(make(name), steps=tuple(Step(number, row) for number, row in enumerate(rows, 1)))


def test_a_step_counts_where_two_runs_have_it():
    nan = {"a": math.nan}
    runs = with_steps("r-1", {"a": 1.0}, {"a": 2.0}, nan, {"a": 9.0}), with_steps("r-2", {"a": 3.0}, nan, {"a": 1.0})
    [group] = groups_of([*runs, with_steps("r-3", {"a": 8.0}, {"a": 4.0})])
    assert [(step.step, step.metrics) for step in group.steps] == [
        (1, {"a": Spread(4.0, math.sqrt(13), 1.0, 8.0, 3)}),
        (2, {"a": Spread(3.0, math.sqrt(2), 2.0, 4.0, 2)}),
        (3, {}),
    ]
    series = group_series(group, 4, frozenset())
    assert series["steps"] == [1, 2, 3]
    assert series["series"]["a"] == {
        "mean": [4, 3], "sd": [3.6056, 1.4142], "low": [1, 2], "high": [8, 4], "n": [3, 2], "i": [0, 1],
    }  # fmt: skip


def test_time_of_a_group_never_goes_back_when_a_slow_run_ends():
    fast = with_steps("r-1", *[{"timing_s/step": 1.0}] * 4)
    slow, middle = with_steps("r-2", *[{"timing_s/step": 9.0}] * 2), with_steps("r-3", *[{"timing_s/step": 2.0}] * 4)
    [group] = groups_of([fast, slow, middle])
    assert [step.elapsed_s for step in group.steps] == [4.0, 8.0, 8.0, 8.0]


def test_the_summary_is_of_the_runs():
    rewards = {"r-1": 0.5, "r-2": 0.7}
    [group] = groups_of([with_steps(name, {"critic/score/mean": reward}) for name, reward in rewards.items()])
    assert group.summary["reward"] == pytest.approx((0.6, 0.1414, 0.5, 0.7, 2), abs=1e-4)
    assert group.summary["validation"] is None


def test_a_long_group_has_few_points_and_no_lost_peak():
    runs = [
        replace(run, steps=make_steps(3_000, keys=20, seed=seed)) for seed, run in enumerate(make_group("a-1", "a-2"))
    ]
    [group] = groups_of(runs)
    series = group_series(group, 3, frozenset())["series"]["critic/score/mean"]
    assert len(series["mean"]) == len(series["i"]) <= 334
    top = max(step.metrics["critic/score/mean"].mean for step in group.steps)
    assert max(series["mean"]) == pytest.approx(top, rel=1e-4)


def test_a_report_has_its_groups_as_numbers():
    report = Report((*make_group("s-1", "s-2", steps=3), make_run("other", steps=3)))
    [group] = json.loads(json.dumps(report.to_json(), allow_nan=False))["groups"]
    assert (group["name"], group["runs"], len(group["steps"])) == ("s", ["s-1", "s-2"], 3)
    assert set(group["steps"][0]["metrics"]["critic/score/mean"]) == {"mean", "sd", "low", "high", "n"}
