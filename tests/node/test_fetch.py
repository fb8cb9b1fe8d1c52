"""Children that fetch: one that blames the network gets a second try."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from cloudrl.node.failure import NodeFailed
from cloudrl.node.fetch import Fetcher
from cloudrl.protocol.failures import Failure, FailureKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("nothing_left")

CHILD = """
import json, os, sys, time
from pathlib import Path
here = Path(__file__).parent
statuses = json.loads((here / "statuses").read_text())
(here / "statuses").write_text(json.dumps(statuses[1:]))
print("said with", statuses[0], file=sys.stderr)
if statuses[0] == "hang":
    time.sleep(600)
if statuses[0] == 0:
    Path(sys.argv[sys.argv.index("--result") + 1]).write_text('{"path": "/models/m"}')
if statuses[0] < 0:
    os.kill(os.getpid(), -statuses[0])
if statuses[0]:
    Path(sys.argv[sys.argv.index("--error") + 1]).write_text(f"ReadTimeout {statuses[0]}")
sys.exit(statuses[0])
"""


@pytest.fixture
def fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[object, list[float]]]:
    """Fetch a model through children that end with these statuses; returns it, or the failure, and the pauses."""
    (tmp_path / "child.py").write_text(CHILD)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "child.py")])

    def run(statuses: str, timeout_s: float = 60.0) -> tuple[object, list[float]]:
        (tmp_path / "statuses").write_text(statuses)
        pauses: list[float] = []
        more: dict[str, Any] = {"env": os.environ, "timeout_s": timeout_s, "sleep": pauses.append}
        fetcher = Fetcher(rank=1, data_dir=tmp_path / "data", run_dir=tmp_path, **more)
        try:
            return fetcher.fetch_model("owner/name"), pauses
        except NodeFailed as failed:
            return failed.failure, pauses

    return run


def test_it_comes(fetch) -> None:
    assert fetch("[0]") == ("/models/m", [])


def test_it_comes_at_the_second_try(fetch) -> None:
    model, pauses = fetch("[75, 0]")
    assert (model, len(pauses)) == ("/models/m", 1)


def test_a_network_that_fails_twice(fetch) -> None:
    failure, pauses = fetch("[75, 75, 0]")
    reason = "model owner/name: said with 75"
    about: dict[str, Any] = {"subject": "owner/name", "code": "ReadTimeout 75"}
    assert failure == Failure(FailureKind.MODEL, 1, reason, "said with 75", transient=True, **about)
    assert len(pauses) == 1


@pytest.mark.parametrize("statuses", ["[1, 0]", "[75, 1, 0]"])
def test_what_comes_back_is_not_tried_again(fetch, statuses: str) -> None:
    failure, _ = fetch(statuses)
    about: dict[str, Any] = {"subject": "owner/name", "code": "ReadTimeout 1"}
    assert failure == Failure(FailureKind.MODEL, 1, "model owner/name: said with 1", "said with 1", **about)
    assert failure.permanent


def test_a_child_that_crashes_leaves_no_code_of_the_one_before(fetch) -> None:
    failure, _ = fetch("[75, -9, 0]")
    assert (failure.subject, failure.code) == ("owner/name", "exit -9")


@pytest.mark.io
def test_a_download_that_hangs(fetch) -> None:
    failure, pauses = fetch('["hang", 0]', timeout_s=1.0)
    assert (failure.reason, failure.transient) == ("model owner/name: not there after 1 s", True)
    assert failure.signature == "model|owner/name|timeout"
    assert pauses == []
