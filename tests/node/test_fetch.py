"""Children that fetch: one that blames the network gets a second try."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cloudrl.node.failure import NodeFailed
from cloudrl.node.fetch import Fetcher
from cloudrl.protocol.failures import Failure, FailureKind
from cloudrl.protocol.options import AgentOptions
from cloudrl.protocol.progress import Fetching
from cloudrl.protocol.services import Artifact
from cloudrl.protocol.wire import to_json

pytestmark = pytest.mark.usefixtures("nothing_left")

CHILD = """
import json, os, sys, time
from pathlib import Path
here = Path(__file__).parent
ends = json.loads((here / "ends").read_text())
(here / "ends").write_text(json.dumps(ends[1:]))
end = ends[0]
print("said on", end, file=sys.stderr)
if end == "hang":
    time.sleep(600)
if end == "crash":
    os.kill(os.getpid(), 9)
bad = {} if end == "good" else {"reason": end, "code": "ReadTimeout", "transient": end == "network"}
result = next(word for word in sys.argv if word.startswith("--result=")).partition("=")[2]
Path(result).write_text(json.dumps(bad or {"path": "/models/m"}))
sys.exit(bool(bad))
"""


@pytest.fixture
def fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[object, list[float]]]:
    """Fetch a model through children that end like this; returns it, or the failure, and the pauses."""
    (tmp_path / "child.py").write_text(CHILD)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "child.py")])

    def run(*ends: str, timeout_s: float = 60.0) -> tuple[object, list[float]]:
        (tmp_path / "ends").write_text(json.dumps(ends))
        pauses: list[float] = []
        options = AgentOptions(data_dir=tmp_path / "data", run_dir=tmp_path, fetch_timeout_s=timeout_s)
        fetcher = Fetcher(options, 1, os.environ, sleep=pauses.append)
        try:
            return fetcher.fetch_model("owner/name"), pauses
        except NodeFailed as failed:
            return failed.failure, pauses

    return run


def failure(reason: str, code: str, tail: str, *, transient: bool = False) -> Failure:
    reason = f"model owner/name: {reason}"
    return Failure(FailureKind.MODEL, 1, reason, tail, transient=transient, subject="owner/name", code=code)


def test_it_comes(fetch) -> None:
    assert fetch("good") == ("/models/m", [])


def test_it_comes_at_the_second_try(fetch) -> None:
    assert fetch("network", "good") == ("/models/m", [5.0])


def test_a_network_that_fails_twice(fetch) -> None:
    said = failure("network", "ReadTimeout", "said on network", transient=True)
    assert fetch("network", "network", "good") == (said, [5.0])


@pytest.mark.parametrize("ends", [("wrong", "good"), ("network", "wrong", "good")])
def test_what_comes_back_is_not_tried_again(fetch, ends: tuple[str, ...]) -> None:
    assert fetch(*ends)[0] == failure("wrong", "ReadTimeout", "said on wrong")


def test_a_child_that_crashes_leaves_nothing_of_the_one_before(fetch) -> None:
    assert fetch("network", "crash", "good")[0] == failure("said on crash", "exit -9", "said on crash")


@pytest.mark.io
def test_a_download_that_hangs(fetch) -> None:
    said = failure("not finished after 5 s", "timeout", "said on hang", transient=True)
    assert fetch("hang", "good", timeout_s=5.0) == (said, [])


@pytest.fixture
def make(tmp_path: Path) -> Callable[[str], tuple[object, list[float]]]:
    """Make an artifact by a command; returns its folder, or the failure, and the pauses."""

    def run(command: str) -> tuple[object, list[float]]:
        pauses: list[float] = []
        options = AgentOptions(data_dir=tmp_path / "data", run_dir=tmp_path)
        fetcher = Fetcher(options, 1, os.environ, sleep=pauses.append)
        try:
            return fetcher.make_artifact(Artifact("index", command)), pauses
        except NodeFailed as failed:
            return failed.failure, pauses

    return run


def test_an_artifact_is_made_in_its_own_folder_and_its_command_runs_at_every_start(make, tmp_path: Path) -> None:
    folder = tmp_path / "data/artifacts/index"
    for _ in range(2):
        assert make("echo row >> index") == (str(folder), [])
    assert (folder / "index").read_text() == "row\nrow\n"


def test_an_artifact_that_fails_is_named_by_the_last_line_of_its_command(make) -> None:
    made, pauses = make("echo sizes; echo 'error: part_aa: SHA-256 is 12, not 34' >&2; exit 2")
    reason = "artifact index: error: part_aa: SHA-256 is 12, not 34"
    tail = "sizes\nerror: part_aa: SHA-256 is 12, not 34"
    assert made == Failure(FailureKind.ARTIFACT, 1, reason, tail, subject="index", code="exit 2")
    assert (made.permanent, pauses) == (True, [])


def test_a_command_that_blames_the_network_is_tried_again(make) -> None:
    made, pauses = make("echo the Hub does not answer; test -e again || { touch again; exit 75; }")
    assert pauses == [5.0]
    assert isinstance(made, str)
    made, pauses = make("echo the Hub does not answer; exit 75")
    assert (made.permanent, made.reason, pauses) == (False, "artifact index: the Hub does not answer", [5.0])


# -- how far it is ------------------------------------------------------------------------------------------------


def seen_of(tmp_path: Path, command: str) -> list[tuple[str, Fetching | None]]:
    """What is reported while an artifact is made by a command."""
    seen: list[tuple[str, Fetching | None]] = []
    options = AgentOptions(data_dir=tmp_path / "data", run_dir=tmp_path)
    fetcher = Fetcher(options, 1, os.environ, on_progress=lambda name, progress: seen.append((name, progress)))
    fetcher.make_artifact(Artifact("index", command))
    return seen


def test_the_last_line_of_a_child_says_how_far_it_is_and_its_end_is_reported(tmp_path: Path) -> None:
    seen = seen_of(tmp_path, "echo 'row 1'; echo ' row 2 '; sleep 1.3")
    assert ("index", Fetching("row 2")) in seen
    assert seen[-1] == ("index", None)


def test_what_a_child_counts_comes_before_its_lines(tmp_path: Path) -> None:
    counted = Fetching("", 3, 10, 1.5)
    (tmp_path / "counted.json").write_text(json.dumps(to_json(counted)))
    seen = seen_of(tmp_path, f"echo row; cp {tmp_path}/counted.json {tmp_path}/artifact-index.progress; sleep 1.3")
    assert ("index", counted) in seen
