"""How an agent is told to end."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from patience import SLOWER

from cloudrl.node.shutdown import RELEASE, SIGNALS, Shutdown, ShutdownRequest


@pytest.fixture
def ending() -> Iterator[ShutdownRequest]:
    """The handlers of this process are put back afterwards."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield ShutdownRequest()
    for number, handler in before.items():
        signal.signal(number, handler)


def _pause(ending: ShutdownRequest) -> Shutdown | None:
    try:
        ending.pause(0.0)
    except Shutdown as ended:
        return ended
    return None


def test_nothing_happens_by_itself(ending: ShutdownRequest) -> None:
    ending.listen(None)
    assert _pause(ending) is None


def test_the_first_reason_counts(ending: ShutdownRequest) -> None:
    ending.listen(None)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    ending.set(Shutdown("later", 1))
    assert str(_pause(ending)) == "ended by SIGTERM"


def _watch(ending: ShutdownRequest, words: list[bytes]) -> None:
    """Listen to a lease whose other end says these words and is closed."""
    before = set(threading.enumerate())
    reading, writing = os.pipe()
    ending.listen(reading)
    for word in words:
        os.write(writing, word)
    os.close(writing)
    for thread in set(threading.enumerate()) - before:
        thread.join(10 * SLOWER)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.close(reading)


@pytest.mark.parametrize("words", [[], [b"det"], [b"something else"]])
def test_the_loss_of_the_starter(ending: ShutdownRequest, words: list[bytes]) -> None:
    _watch(ending, words)
    ended = _pause(ending)
    assert (str(ended), ended.exit_code) == ("the command that started this cluster has died", 1)


@pytest.mark.parametrize("words", [[RELEASE], [b"det", b"ach"]])
def test_a_release(ending: ShutdownRequest, words: list[bytes]) -> None:
    _watch(ending, words)
    assert _pause(ending) is None


def test_a_pause_ends_with_the_signal_not_with_the_time(ending: ShutdownRequest) -> None:
    ending.listen(None)
    timer = threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGTERM])
    timer.start()
    began = time.monotonic()
    with pytest.raises(Shutdown, match="ended by SIGTERM"):
        ending.pause(60.0)
    assert time.monotonic() - began < 30
    timer.join(10 * SLOWER)
