"""Entries for paused tasks in VS Code's launch.json, and what becomes of them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fake_local import FakeLocal

from cloudrl.debug.launch import entry
from cloudrl.protocol.stops import DEBUGPY, Stop
from cloudrl.sdk.callbacks import Notice, Update
from cloudrl.sdk.debug_ports import DebugPorts
from cloudrl.sdk.debugging import PausedTasks

pytestmark = pytest.mark.io

STOP = Stop("1", 0, 7, 5678, debugger=DEBUGPY, actor="WorkerDict", rank=0, method="train", file="/v/a.py", line=4)
MINE = '{"configurations": [{"name": "cloudrl: my own launcher"}]}'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / ".vscode" / "launch.json"


def names(file: Path) -> Sequence[str]:
    return [each["name"] for each in json.loads(file.read_text())["configurations"]]


def ports(lab: FakeLocal, file: Path, told: list[Update] | None = None) -> DebugPorts:
    return DebugPorts(PausedTasks("lab"), file.parent.parent, [].append if told is None else told.append)


def test_a_file_of_ours_comes_and_goes(lab: FakeLocal, file: Path) -> None:
    with ports(lab, file) as opened:
        opened.refresh()
        assert not file.exists()
        lab.cluster.stops = [STOP, replace(STOP, id="2", pid=8, job="b")]
        opened.refresh()
        assert names(file) == [f"cloudrl: local/lab, WorkerDict rank 0, node 0, pid {pid}" for pid in (7, 8)]
    assert [*file.parent.iterdir()] == []


def test_entries_of_a_killed_session_go_and_those_of_others_stay(lab: FakeLocal, file: Path) -> None:
    lab.cluster.stops = [STOP]
    file.parent.mkdir()
    killed = entry(STOP, 1, "local/lab")
    elsewhere = entry(STOP, 1, "dstack/lab")
    file.write_text(json.dumps({"configurations": [killed, elsewhere, {"name": "cloudrl: my own launcher"}]}))
    others = [elsewhere["name"], "cloudrl: my own launcher"]
    with ports(lab, file) as one:
        one.refresh()
        assert names(file) == [*others, killed["name"]]
        with ports(lab, file) as two:
            two.refresh()
            assert names(file) == [*others, killed["name"], killed["name"]]
        assert names(file) == [*others, killed["name"]]
        lab.cluster.stops = []
    assert names(file) == others


def test_a_session_without_a_stop_takes_out_what_a_killed_one_has_left(lab: FakeLocal, file: Path) -> None:
    file.parent.mkdir()
    file.write_text(json.dumps({"configurations": [entry(STOP, 1, "local/lab")]}))
    with ports(lab, file) as opened:
        opened.refresh()
        assert names(file) == []


def test_a_file_that_nobody_may_write_is_left_and_that_is_said(lab: FakeLocal, file: Path) -> None:
    lab.cluster.stops, told = [STOP], list[Update]()
    file.parent.mkdir()
    file.write_text(MINE)
    file.chmod(0o444)
    with ports(lab, file, told) as opened:
        opened.refresh()
    assert file.read_text() == MINE
    assert any(isinstance(each, Notice) and "is left as it is (it is read-only)" in each.text for each in told)


def test_entries_that_cannot_be_taken_out_are_said(lab: FakeLocal, file: Path) -> None:
    lab.cluster.stops, told = [STOP], list[Update]()
    with ports(lab, file, told) as opened:
        opened.refresh()
        file.write_text("{ half")
    assert isinstance(told[-1], Notice)
    assert told[-1].text.endswith("Remove from its configurations: cloudrl: local/lab, ...")


def test_links_are_followed_and_no_other_file_is_written(lab: FakeLocal, file: Path, tmp_path: Path) -> None:
    lab.cluster.stops = [STOP]
    file.parent.mkdir()
    (file.parent / ".launch.json.part").symlink_to(tmp_path / "victim")
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "real.json").write_text(MINE)
    (tmp_path / "real.json").chmod(0o640)
    file.symlink_to(tmp_path / "real.json")
    with ports(lab, file) as opened:
        opened.refresh()
        assert len(names(tmp_path / "real.json")) == 2
    assert file.is_symlink()
    assert (tmp_path / "victim").read_text() == "mine"
    assert json.loads(file.read_text()) == json.loads(MINE)
    assert file.stat().st_mode & 0o777 == 0o640


def test_links_in_a_circle_are_said(lab: FakeLocal, file: Path) -> None:
    lab.cluster.stops, told = [STOP], list[Update]()
    file.parent.mkdir()
    file.symlink_to(file)
    with ports(lab, file, told) as opened:
        opened.refresh()
    assert any(isinstance(each, Notice) and "is left as it is" in each.text for each in told)


def test_ctrl_c_right_after_the_file_was_written_ends_it(
    lab: FakeLocal, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.replace

    def replace_and_interrupt(part: Path, target: Path) -> None:
        rename(part, target)
        raise KeyboardInterrupt

    opened = ports(lab, file)
    lab.cluster.stops = [STOP]
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", replace_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            opened.refresh()
    with opened:
        pass
    assert not file.exists()
