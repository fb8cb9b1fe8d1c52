"""Lets a program end by SIGTERM or SIGHUP as by Ctrl-C: what it has begun is undone.

By default both end a process at once: a merge that is stopped by `kill`, by a closed ssh window or with its machine
leaves a hidden folder as large as the model. These are for programs, not for libraries: a signal has one handler in a
process, and the main thread alone may set it.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_ENDS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def undone_by_signals() -> Iterator[None]:
    """Within the block, these signals raise SystemExit with 128 + their number: 143 and 129.

    One that is ignored, as by nohup, or handled by somebody else, stays so. Further ones, while the first unwinds the
    stack, are ignored, so that the end is not cut short; SIGKILL is not. The exit code is that of the signal whatever
    else fails meanwhile, such as a terminal that has gone. After the block, when all is undone, each of them and Ctrl-C
    end the program at once: Python would print a traceback from where it waits for threads.
    """
    handled, at_the_end = _usual(*_ENDS), _usual(*_ENDS, signal.SIGINT)
    received: list[int] = []

    def end(number: int, _frame: object) -> None:
        received.append(number)
        _ignore(*_ENDS, signal.SIGINT)
        raise SystemExit(128 + number)

    for each in handled:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in at_the_end:
            signal.signal(each, signal.SIG_DFL)
        if received:
            raise SystemExit(128 + received[0])


@contextmanager
def undone_once() -> Iterator[None]:
    """Within the block, Ctrl-C raises KeyboardInterrupt once; while it unwinds the stack, signals are ignored.

    A second KeyboardInterrupt may come at the first instruction of an `__exit__`, and then nothing is undone. Not for
    what asks a question after the first Ctrl-C, or leaves at the second.
    """
    if not _usual(signal.SIGINT):
        yield
        return
    before = {number: signal.getsignal(number) for number in (*_ENDS, signal.SIGINT)}

    def interrupt(_number: int, _frame: object) -> None:
        _ignore(*before)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _usual(*numbers: signal.Signals) -> list[signal.Signals]:
    """Those that do what they do in any Python program; none in a thread that may not handle signals."""
    if threading.current_thread() is not threading.main_thread():
        return []
    usual = (signal.SIG_DFL, signal.default_int_handler)
    return [number for number in numbers if signal.getsignal(number) in usual]


def _ignore(*numbers: signal.Signals) -> None:
    """By a handler: SIG_IGN would pass on to the programs that are started meanwhile."""
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
