"""A report as numbers."""

import csv
import io
import json
import math

from make_report import make_report

from cloudrl.logs.causes import Cause, Sighting
from cloudrl.report import Report, RunReport
from cloudrl.verl.metrics import Step


def run(name: str, steps: tuple[Step, ...]) -> RunReport:
    return RunReport(name, f"ray://lab/{name}", steps=steps)


def test_as_csv():
    runs = (
        run("a", (Step(1, {"x": 1.0, "timing_s/step": 2.0}), Step(2, {"x": math.nan}))),
        run("b,\n", (Step(1, {"y": 3.0}),)),
    )
    rows = list(csv.reader(io.StringIO(Report(runs).to_csv())))
    assert rows == [
        ["run", "step", "elapsed_s", "timing_s/step", "x", "y"],
        ["a", "1", "2.0", "2.0", "1.0", ""],
        ["a", "2", "2.0", "", "", ""],
        ["b,\n", "1", "0.0", "", "", "3.0"],
    ]


def test_as_json():
    cause = Cause("ValueError: no", rank=1, elsewhere=(Sighting("KeyError: 2"),))
    report = make_report(steps=2, cause=cause)
    [found] = json.loads(json.dumps(report.to_json(), allow_nan=False))["runs"]
    assert found["steps"][1]["metrics"]["critic/score/max"] == 1.0
    assert (found["name"], found["status"], found["tables"][0]["title"]) == ("grpo-1", "SUCCEEDED", "Nodes")
    assert found["samples"][0]["prompt"] == "What is 0 + 1?"
    assert (found["cause"]["error"], found["cause"]["elsewhere"][0]["error"]) == ("ValueError: no", "KeyError: 2")


def test_a_value_that_is_no_number_is_none():
    report = Report((run("a", (Step(1, {"x": math.inf}),)),))
    assert report.to_json()["runs"][0]["steps"] == [{"step": 1, "metrics": {"x": None}}]


def test_what_differs_between_runs():
    table = make_report("a", "b", steps=1).config_differences()
    assert (table.columns, table.rows) == (
        ("key", "a", "b"), (("actor_rollout_ref.actor.optim.lr", "1e-6", "2e-6"),),
    )  # fmt: skip
