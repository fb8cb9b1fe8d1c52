"""How an agent is told to end."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from cloudrl.node.ending import RELEASE, SIGNALS, Ended, Ending

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def ending() -> Iterator[Ending]:
    """The handlers of this process are put back afterwards."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield Ending()
    for number, handler in before.items():
        signal.signal(number, handler)


def _pause(ending: Ending) -> Ended | None:
    try:
        ending.pause(0.0)
    except Ended as ended:
        return ended
    return None


def _threads() -> set[threading.Thread]:
    return set(threading.enumerate())


def test_nothing_happens_by_itself(ending: Ending) -> None:
    ending.listen(None)
    assert _pause(ending) is None


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal(ending: Ending, number: str, code: int) -> None:
    ending.listen(None)
    os.kill(os.getpid(), signal.Signals[number])
    ended = _pause(ending)
    assert ended is not None
    assert (str(ended), ended.exit_code) == (f"ended by {number}", code)


def test_the_first_reason_counts(ending: Ending) -> None:
    ending.listen(None)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    ending.set(Ended("later", 1))
    assert str(_pause(ending)) == "ended by SIGTERM"


def _watch(ending: Ending, words: list[bytes]) -> None:
    """Listen to a lease whose other end says these words and is closed."""
    before = _threads()
    reading, writing = os.pipe()
    ending.listen(reading)
    for word in words:
        os.write(writing, word)
    os.close(writing)
    for thread in _threads() - before:
        thread.join(10)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.close(reading)


@pytest.mark.parametrize("words", [[], [b"det"], [b"something else"]])
def test_the_loss_of_the_starter(ending: Ending, words: list[bytes]) -> None:
    _watch(ending, words)
    ended = _pause(ending)
    assert ended is not None
    assert (str(ended), ended.exit_code) == ("the command that started this cluster has died", 1)


@pytest.mark.parametrize("words", [[RELEASE], [b"det", b"ach"]])
def test_a_release(ending: Ending, words: list[bytes]) -> None:
    _watch(ending, words)
    assert _pause(ending) is None


def test_a_pause_ends_with_the_reason_not_with_the_time(ending: Ending) -> None:
    timer = threading.Timer(0.0, ending.set, [Ended("now", 1)])
    timer.start()
    with pytest.raises(Ended, match="now"):
        ending.pause(60.0)
    timer.join(10)


def test_a_signal_wakes_a_pause(ending: Ending) -> None:
    ending.listen(None)
    timer = threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGTERM])
    timer.start()
    began = time.monotonic()
    with pytest.raises(Ended, match="ended by SIGTERM"):
        ending.pause(60.0)
    assert time.monotonic() - began < 30
    timer.join(10)
