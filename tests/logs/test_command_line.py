"""`cloudrl logs`, as it is typed."""

import json
import re
from pathlib import Path

import pytest
from fake_local import FakeLocal
from kept_logs import keep
from typed_command import Run

pytestmark = pytest.mark.io

HOSTILE = "\x1b]0;pwned\x07\x1b[31mred\x1b[0m \u202edoc.exe\t<script> \x9b2J"
TIME = re.compile(r"\d\d-\d\d \d\d:\d\d:\d\d ")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What two nodes have kept."""
    keep(tmp_path, "logs/raylet.out", b"one\nKeyError: 1\n")
    keep(tmp_path, "logs/worker-1.err", b"two\nKeyError: 2\n", rank=1, at=1500)
    keep(tmp_path, "logs/raylet.out", b"of an earlier run\n", run="run-0", at=10)
    return tmp_path


def test_all_lines_of_the_newest_run(run: Run, folder: Path) -> None:
    code, out, err = run("logs", "--from", str(folder))
    assert (code, err) == (0, "")
    assert TIME.sub("", out).splitlines() == [
        "0 raylet.out | one", "0 raylet.out | KeyError: 1", "1 worker-1.err | two", "1 worker-1.err | KeyError: 2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (["--node", "1"], ["two", "KeyError: 2"]),
        (["--grep", "^KeyError: [12]$"], ["KeyError: 1", "KeyError: 2"]),
        (["--node", "0", "--grep", "Key"], ["KeyError: 1"]),
        (["--log", "worker-*"], ["two", "KeyError: 2"]),
        (["--around", "1970-01-01T00:16:50+00:00"], ["one", "KeyError: 1"]),
        (["--run", "run-0"], ["of an earlier run"]),
        (["--grep", "nowhere"], []),
    ],
)
def test_some_of_them(run: Run, folder: Path, options: list[str], lines: list[str]) -> None:
    code, out, _ = run("logs", "--from", str(folder), *options, "--json")
    assert code == 0
    assert [json.loads(line)["text"] for line in out.splitlines()] == lines


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--node", "7"], "no logs of node 7 are kept; there are those of: 0-1"),
        (["--run", "gone"], "no logs of run 'gone' are kept; there are: run-1, run-0"),
        (["--grep", "("], "--grep '(' is not a regular expression: "),
        (["--around", "noon"], "'noon' is not a time"),
        (["--from", "/nowhere"], "no logs are kept in /nowhere"),
    ],
)
def test_what_is_not_there(run: Run, folder: Path, options: list[str], said: str) -> None:
    run("logs", "--from", str(folder), *options).ended(2, said)


def test_what_steers_a_terminal_is_shown_and_not_done(run: Run, tmp_path: Path) -> None:
    keep(tmp_path, "logs/raylet.out", f"{HOSTILE}\n".encode())
    code, out, _ = run("logs", "--from", str(tmp_path))
    assert code == 0
    assert not set("\x1b\x07\u202e\x9b") & set(out)
    assert "red \\u202edoc.exe\t<script> \\x9b2J" in out


def test_a_cluster_that_is_up_and_then_down(run: Run, lab: FakeLocal) -> None:
    volume = lab.state.checkpoints
    lab.cluster.disks = {0: volume}
    run("logs").ended(2, "rank 1 does not say what it has: ", "no logs are kept in lab")
    keep(volume, "logs/raylet.out", b"one\n", run=lab.state.id)
    code, out, err = run("logs", "--cluster", "lab")
    assert (code, TIME.sub("", out)) == (0, "0 raylet.out | one\n")
    assert "rank 1 does not say what it has: " in err
    lab.__exit__()
    keep(volume, "logs/raylet.out", b"two\n", run="of-another-cluster", at=5000)
    code, out, err = run("logs", "--cluster", "lab")
    assert (code, TIME.sub("", out), err) == (0, "0 raylet.out | one\n", "")
