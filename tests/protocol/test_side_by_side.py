"""Calls side by side: a bounded number, in order, and nothing that hangs is waited for."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from patience import SLOWER

from cloudrl.protocol.side_by_side import AT_ONCE, side_by_side


def test_results_are_in_the_order_of_the_items() -> None:
    assert side_by_side(lambda number: number * 2, range(1000)) == list(range(0, 2000, 2))
    assert side_by_side(str, iter([7])) == ["7"]
    assert side_by_side(str, []) == []


def test_a_bounded_number_at_once() -> None:
    meeting, lock = threading.Barrier(AT_ONCE), threading.Lock()
    now, most = 0, 0

    def call(_: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        meeting.wait(30 * SLOWER)
        with lock:
            now -= 1

    side_by_side(call, range(4 * AT_ONCE))
    assert most == AT_ONCE


def test_the_first_error_ends_it() -> None:
    began: list[int] = []

    def call(number: int) -> None:
        began.append(number)
        raise KeyError(number)

    with pytest.raises(KeyError, match="0"):
        side_by_side(call, range(10_000), at_once=1)
    assert len(began) < 10_000


def test_what_hangs_is_not_waited_for_after_an_error() -> None:
    hanging = threading.Event()

    def call(number: int) -> None:
        if number:
            hanging.wait(30 * SLOWER)
        else:
            raise KeyError(number)

    began = time.monotonic()
    with pytest.raises(KeyError):
        side_by_side(call, range(100))
    assert time.monotonic() - began < 20
    hanging.set()


_HANGS = """
import threading
from cloudrl.protocol.side_by_side import side_by_side
def call(number):
    print(number, flush=True)
    threading.Event().wait(60)
side_by_side(call, range(100))
"""


@pytest.mark.io
def test_ctrl_c_ends_a_program_whose_nodes_hang() -> None:
    with subprocess.Popen([sys.executable, "-c", _HANGS], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(process.pid, signal.SIGINT)
        try:
            assert process.wait(20 * SLOWER) != 0
        finally:
            process.kill()
