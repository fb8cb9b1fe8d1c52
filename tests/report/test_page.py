"""The page as text: what is in it, and that data stays data."""

import hashlib
import json
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from zipfile import ZipFile

import pytest
from hostile import texts
from hypothesis import given
from make_report import make_report

from cloudrl.logs.causes import Cause, Sighting
from cloudrl.report import Report, RunReport
from cloudrl.report.page import VENDOR, as_element, data, page, policy
from cloudrl.verl.metrics import Step


def test_it_asks_no_network_for_anything():
    text = page(make_report(steps=3))
    assert re.findall(r"(?:src|href|action)\s*=", text.split("<main")[0]) == []
    assert "connect-src" not in policy(is_served=False)
    assert "connect-src 'self'" in policy(is_served=True)
    assert "unsafe" not in policy(is_served=True)


@given(texts)
def test_any_text_stays_in_its_element(text: str):
    element = as_element({text: text})
    assert json.loads(element) == {text: text}
    assert not re.search(r"[<\u2028\u2029]", element)


def test_half_a_character_is_replaced():
    assert json.loads(as_element("\ud800")) == "?"


def test_a_cause_is_shown_with_its_place_and_its_remedy():
    cause = Cause(
        "ValueError: no", None, 1, "WorkerDict (pid 7)", "known", "It means this.", "Do that.", ("a", "b"),
        (Sighting("KeyError: 2", None, 0, "raylet"),),
    )  # fmt: skip
    [run] = data(make_report(steps=1, cause=cause))["runs"]
    assert run["cause"] == {
        "error": "ValueError: no", "place": "rank 1, WorkerDict (pid 7)", "meaning": "It means this. [known]",
        "remedy": "Do that.", "lines": "a\nb", "elsewhere": ["rank 0, raylet: KeyError: 2"],
    }  # fmt: skip


def test_files_that_were_sent_have_their_own_names():
    sent = {"data.train_files": "['cloudrl_files/0a1b2c3d/train.parquet']", "actor.path": "/vol/cloudrl_files/x"}
    [run] = data(make_report(steps=1, config=sent))["runs"]
    assert run["config"] == {"actor.path": "/vol/cloudrl_files/x", "data.train_files": "['./train.parquet']"}


def test_ten_thousand_steps_fit_in_five_megabytes():
    assert len(page(make_report(steps=10_000)).encode()) < 5_000_000


def test_the_vendored_files_are_those_of_the_release():
    folder = files("cloudrl.report") / VENDOR
    sums = re.findall(r"^([0-9a-f]{64})  (\S+)$", (folder / "VERSION.txt").read_text(), re.MULTILINE)
    assert [name for _, name in sums] == ["uPlot.iife.min.js", "uPlot.min.css"]
    assert [hashlib.sha256((folder / name).read_bytes()).hexdigest() for _, name in sums] == [each for each, _ in sums]
    assert "Leon Sorokin" in (folder / "LICENSE").read_text()


@pytest.mark.io
def test_a_wheel_has_all_that_a_page_is_made_of(repository: Path, tmp_path: Path):
    words = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path))
    subprocess.run(words, cwd=repository, check=True, capture_output=True, timeout=60)
    [wheel] = tmp_path.glob("*.whl")
    folders = ("cloudrl/report/page", "cloudrl/report/vendor")
    assets = {str(path.relative_to(repository)) for folder in folders for path in (repository / folder).iterdir()}
    assert len(assets) == 11
    assert assets <= set(ZipFile(wheel).namelist())


# -- what a chart and the page leave out --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("highest", "band"), [((1.0, 1.0), ()), ((1.0, 0.5), ("critic/score/min", "critic/score/max"))]
)
def test_a_band_that_never_moves_is_left_out(highest: tuple[float, float], band: tuple[str, ...]):
    keys = ("critic/score/mean", "critic/score/min", "critic/score/max")
    steps = tuple(Step(place, dict(zip(keys, (0.4, 0.0, high), strict=True))) for place, high in enumerate(highest))
    [panel] = data(Report((RunReport("one", "ray://lab/one", steps=steps),)))["panels"]
    assert tuple(panel["band"]) == band


def test_the_page_has_what_a_run_is_at_a_glance_and_the_end_of_its_log():
    [run] = data(make_report(steps=1))["runs"]
    assert run["about"]["Git commit"] == "1a2b3c4 with changes"
    assert run["log"].endswith("step:1 - critic/score/mean:0.1")
