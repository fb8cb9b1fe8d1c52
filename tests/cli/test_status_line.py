"""The last line of a terminal, and the clock on it while a block is silent."""

import io
import threading

import pytest

from cloudrl.cli._status_line import StatusLine


class Screen(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen() -> Screen:
    return Screen()


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def line(screen: Screen, now: list[float]) -> StatusLine:
    return StatusLine(lambda: now[0], screen)


def test_a_silent_block_has_a_clock_after_a_second(screen: Screen, now: list[float], line: StatusLine) -> None:
    for now[0] in (100.5, 101.0, 102.0, 163.0):
        line.tick("checking the job", 100.0)
    assert screen.getvalue().split("\r\x1b[K")[1:] == [
        "checking the job for 1 s", "checking the job for 2 s", "checking the job for 1 min 03 s",
    ]  # fmt: skip


def test_the_clock_leaves_no_line_behind(screen: Screen, now: list[float], line: StatusLine) -> None:
    now[0] = 105.0
    line.tick("checking the job", 100.0)
    line.close()
    assert screen.getvalue().endswith("for 5 s\r\x1b[K")


def test_what_is_said_stays(screen: Screen, now: list[float], line: StatusLine) -> None:
    line.show("uploading: 3 of 9 MB")
    now[0] = 160.0
    line.tick("checking the job", 100.0)
    assert screen.getvalue() == "\r\x1b[Kuploading: 3 of 9 MB"
    line.close()
    now[0] = 160.5
    line.tick("checking the job", 100.0)
    assert screen.getvalue().endswith("9 MB\n"), "a second passes after a line before the clock is back"


def test_a_block_ends_its_clock(screen: Screen) -> None:
    before, line = threading.active_count(), StatusLine(stream=screen)

    def fail() -> None:
        with line.busy("checking"):
            assert threading.active_count() == before + 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert threading.active_count() == before
    assert screen.getvalue() == ""


def test_where_lines_cannot_be_rewritten_there_is_no_clock(capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    with StatusLine().busy("checking"):
        assert threading.active_count() == before
    assert capsys.readouterr() == ("", "")
