"""`cloudrl demo`: what a newcomer runs first; and the report of that run, whose cluster is gone."""

import csv
import json
import re
from pathlib import Path

import browser
import pytest
from browser import Browser

pytestmark = pytest.mark.e2e


def test_demo_trains_on_two_nodes_and_cleans_up(shell, tmp_path):
    done = shell.run("demo")

    before, after = map(float, re.search(r"accuracy +(\S+) -> (\S+)", done.stdout).groups())
    assert before < 0.35
    assert after > 0.6
    folder = re.search(r"checkpoint (\S+)", done.stdout)[1]
    assert folder.startswith(str(shell.home))
    names = {path.name for path in shell.home.glob("home/clusters/demo/checkpoints/*/global_step_20/actor/*.pt")}
    assert names >= {f"{kind}_world_size_2_rank_{rank}.pt" for kind in ("model", "optim") for rank in (0, 1)}
    model = Path(re.search(r"model +(\S+)", done.stdout)[1])
    assert (model / "model.safetensors").stat().st_size > 200_000
    assert len(re.findall(r"^ +(\d+\+\d+=)\S* -> \1\S*$", done.stdout, re.MULTILINE)) == 3
    assert shell.leftovers() == []
    assert shell.temporary_files() == []
    assert "step 20/20" in done.stderr
    assert any("step:20 - " in line for line in shell.driver_log("demo")), "the job's log outlives the cluster"
    beside = {path.name for path in shell.home.iterdir()}
    assert beside == {"home", "tmp"}, "verl and Ray leave nothing in the folder where it was called"
    check_numbers(shell)
    if browser.program() is not None:
        check_page(shell, tmp_path)


def check_numbers(shell):
    [run] = json.loads(shell.run("report", "--cluster", "demo", "--json").stdout)["runs"]
    assert (run["status"], run["cause"], run["total_steps"]) == ("SUCCEEDED", None, 20)
    assert [step["step"] for step in run["steps"]] == [*range(1, 21)]
    last = run["steps"][-1]["metrics"]
    assert {"critic/score/mean", "timing_s/gen", "actor/entropy"} <= last.keys()
    assert run["config"]["trainer.nnodes"] == "2"
    tables = {table["title"]: table["rows"] for table in run["tables"]}
    assert [row[0] for row in tables["Nodes"]] == ["0", "1"]
    assert "20" in [row[0] for row in tables["Checkpoints"]]
    assert {node["rank"]: len(node["samples"]) > 2 for node in run["usage"]} == {0: True, 1: True}
    samples = [each for node in run["usage"] for each in node["samples"]]
    assert all(0 <= each.get("cpu", 0) <= 100 and each["memory"] > 0 for each in samples)
    assert max(each.get("cpu", 0) for each in samples) > 10
    rows = list(csv.DictReader(shell.run("report", "--cluster", "demo", "--csv").stdout.splitlines()))
    assert [int(row["step"]) for row in rows] == [*range(1, 21)]
    assert float(rows[-1]["critic/score/mean"]) == last["critic/score/mean"]


def check_page(shell, folder):
    shell.run("report", "--cluster", "demo", "-o", str(folder / "report.html"))
    with Browser(folder / "profile") as chromium:
        chromium.open((folder / "report.html").as_uri())
        for card in ("Reward", "Entropy", "Seconds a step", "CPU busy (%)"):
            figure = f"[...document.querySelectorAll('figure')].find((each) => each.textContent.startsWith('{card}'))"
            chromium.evaluate(f"{figure}.scrollIntoView()")
            chromium.wait(f"{figure}.querySelector('canvas')")
        text = chromium.evaluate("document.body.innerText")
        assert "20 of 20" in text
        assert "rank 1" in text
        assert chromium.errors == []
