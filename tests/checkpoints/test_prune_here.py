"""Removing steps of a folder of this machine: what was ended midway is not left behind for ever."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from small_step import write_step

from cloudrl.checkpoints.handle import Checkpoints
from cloudrl.checkpoints.sources import LocalSource
from cloudrl.errors import CheckpointError
from cloudrl.saves import removal
from cloudrl.saves.removal import tombstone
from cloudrl.sdk.callbacks import Question
from cloudrl.sdk.checkpoints import prune


def yes(_: Question) -> bool:
    return True


def hidden(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*") if path.is_dir()]


@pytest.mark.parametrize("named", ["", "run", "run/global_step_20", "run/global_step_20/actor"])
def test_what_an_ended_prune_has_left_goes_with_the_next(tmp_path: Path, named: str) -> None:
    for step in (10, 20):
        write_step(tmp_path / "run", step)
    tombstone(tmp_path, "run/global_step_10")  # and then it was killed
    assert len(hidden(tmp_path)) == 1

    plan = prune(Checkpoints(LocalSource(tmp_path / named)), 1, confirm=yes)

    assert (plan.removals, hidden(tmp_path)) == ((), [])
    assert (tmp_path / "run/global_step_20/actor").is_dir()


@pytest.mark.io
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_prune_that_a_signal_ends(tmp_path: Path, number: signal.Signals) -> None:
    program = """
import os, sys, time
from cloudrl.cli import main
from cloudrl.saves import removal

def slow(path, **_):
    print("begun", flush=True)
    time.sleep(60)

removal.shutil.rmtree = slow
sys.argv = ["cloudrl", "checkpoints", "prune", "--keep-last", "1", "--yes", "--dir", sys.argv[1]]
main.main()
"""
    for step in (10, 20):
        write_step(tmp_path, step)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in said) == (128 + number, False)
    assert [each.step for each in Checkpoints(LocalSource(tmp_path))] == [20]
    prune(Checkpoints(LocalSource(tmp_path)), 1, confirm=yes)
    assert hidden(tmp_path) == []


def test_what_cannot_be_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (10, 20):
        write_step(tmp_path, step)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, os.strerror(13), "global_step_10", None, ".aside")

    monkeypatch.setattr(removal.os, "rename", refuse)
    with pytest.raises(CheckpointError) as raised:
        prune(Checkpoints(LocalSource(tmp_path)), 1, confirm=yes)
    assert raised.value.message == f"{tmp_path}/global_step_10 cannot be removed: Permission denied"
    assert raised.value.hint is not None
