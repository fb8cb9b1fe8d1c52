"""Command lines of processes: one that cannot be read holds up nothing, and keeps what it was."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import SLOWER

from cloudrl.node.titles import Titles

Write = Callable[[int, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_one(pid: int, title: str) -> Path:
        path = tmp_path / "proc" / str(pid) / "cmdline"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(title)
        return path

    return write_one


def test_words_are_separated_and_what_has_no_title_is_left_out(tmp_path: Path, write: Write):
    write(7, "python3\0-m\0verl\0")
    write(8, "")
    assert Titles(tmp_path).read([7, 8, 9]) == {7: "python3 -m verl"}


def test_a_process_that_ended_is_forgotten(tmp_path: Path, write: Write):
    path, titles = write(7, "ray::WorkerDict"), Titles(tmp_path)
    assert titles.read([7]) == {7: "ray::WorkerDict"}
    path.unlink()
    assert titles.read([7]) == {}


def test_a_process_whose_memory_is_locked_keeps_its_title_and_holds_up_no_other(tmp_path: Path, write: Write):
    """A pipe without a writer stands for it: to open it waits, too."""
    held, other, titles = write(7, "ray::WorkerDict.save"), write(8, "ray::WorkerDict"), Titles(tmp_path, read_s=0.2)
    assert titles.read([7, 8]) == {7: "ray::WorkerDict.save", 8: "ray::WorkerDict"}
    held.unlink()
    os.mkfifo(held)
    assert titles.read([7, 8]) == {7: "ray::WorkerDict.save", 8: "ray::WorkerDict"}
    other.write_text("ray::WorkerDict.train")
    assert titles.read([7, 8]) == {7: "ray::WorkerDict.save", 8: "ray::WorkerDict.train"}
    with held.open("w") as pipe:
        pipe.write("ray::WorkerDict.go_on")
    held.unlink()
    held.write_text("ray::WorkerDict.go_on")
    deadline = time.monotonic() + 5 * SLOWER
    while titles.read([7, 8])[7] != "ray::WorkerDict.go_on":
        assert time.monotonic() < deadline


def test_a_reader_that_comes_back_meanwhile(tmp_path: Path, write: Write):
    write(7, "ray::WorkerDict")
    titles = Titles(tmp_path)

    class Known(dict[int, str]):
        def __contains__(self, pid: object) -> bool:
            titles._held.discard(pid)  # type: ignore[arg-type]
            return False

    titles._titles, titles._held = Known(), {8, 9}
    assert titles.read([7]) == {7: "ray::WorkerDict"}


def test_a_process_that_was_never_read_in_time_has_none(tmp_path: Path, write: Write):
    held = write(7, "")
    held.unlink()
    os.mkfifo(held)
    titles = Titles(tmp_path, read_s=0.05)
    assert [titles.read([7]), titles.read([7])] == [{}, {}]
    os.close(os.open(held, os.O_WRONLY))  # its reader goes on
