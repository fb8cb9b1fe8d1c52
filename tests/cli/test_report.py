"""`cloudrl report`, as it is typed."""

import json
from pathlib import Path

import pytest
from fake_local import FakeLocal
from typed_command import Run

pytestmark = pytest.mark.io

LOG = b"step:1 - critic/score/mean:0.5 - \x07key:1.0 - timing_s/step:2.0\n"


@pytest.fixture
def job(lab: FakeLocal) -> str:
    lab.cluster.add("run-1", LOG, "SUCCEEDED")
    return "run-1"


def test_a_page_is_written_and_its_path_printed(run: Run, job: str) -> None:
    done = run("report").ended(0)
    assert done.out == "report.html\n"
    assert "run-1" in Path("report.html").read_text()
    assert run("report", job, "-o", "other.html").ended(0).out == "other.html\n"
    assert sorted(path.name for path in Path().iterdir()) == ["other.html", "report.html"]


def test_the_numbers(run: Run, job: str) -> None:
    told = json.loads(run("report", job, "--json").ended(0).out)
    assert told["runs"][0]["steps"][0]["metrics"]["critic/score/mean"] == 0.5
    text = run("report", job, "--csv").ended(0).out
    assert text.splitlines()[1].startswith("run-1,1,2.0,")
    assert "\x07" not in text


def test_a_folder_that_cannot_be_written(run: Run, job: str) -> None:
    run("report", job, "-o", "nowhere/x.html").ended(2, "nowhere/x.html cannot be written: No such file")


@pytest.mark.parametrize("words", [("--json", "--csv"), ("--serve", "-o", "x.html"), ("--serve", "--json")])
def test_one_result_at_a_time(run: Run, words: tuple[str, ...]) -> None:
    run("report", *words).ended(2, "exclude each other")


@pytest.mark.parametrize("port", ["-1", "70000"])
def test_a_port_that_is_none(run: Run, job: str, port: str) -> None:
    run("report", job, "--serve", "--port", port).ended(2, "--port")


def test_what_is_missing_is_said_before_it_is_served(run: Run, lab: FakeLocal) -> None:
    Path("x.log").write_text("no run\n")
    taken = str(lab.state.dashboard_port)
    run("report", "./x.log", "--serve", "--port", taken).ended(2, "x: no step of verl's in this log")


def test_a_port_that_is_taken(run: Run, job: str, lab: FakeLocal) -> None:
    taken = str(lab.state.dashboard_port)
    run("report", job, "--serve", "--port", taken).ended(2, f"port {taken} cannot be used", "Leave --port out")
