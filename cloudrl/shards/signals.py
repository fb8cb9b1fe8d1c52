"""Lets a program end by SIGTERM or SIGHUP as by Ctrl-C: what it has begun is undone.

By default both end a process at once: a merge that is stopped by `kill`, by a closed ssh window or with its machine
leaves a hidden folder as large as the model.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from cloudrl.shards.cancellation import cancel_all

_ENDS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def undone_by_signals() -> Iterator[None]:
    """Within the block, these signals raise SystemExit with 128 + their number: 143 and 129. Ctrl-C stays Ctrl-C.

    For programs, not for libraries: a signal has one handler in a process. One that is ignored, as by nohup, or handled
    by somebody else, stays so. A second one, while the first unwinds the stack, is ignored, so that the end is not cut
    short; SIGKILL is not. The exit code is that of the signal whatever else fails meanwhile, such as a terminal that
    has gone. After the block, when all is undone, a further Ctrl-C ends the program at once: Python would print a
    traceback from where it waits for threads.
    """
    if threading.current_thread() is not threading.main_thread():  # Python lets no other handle signals
        yield
        return
    handled = [each for each in _ENDS if signal.getsignal(each) is signal.SIG_DFL]
    received: list[int] = []
    interrupts: list[int] = []

    def end(number: int, _frame: object) -> None:
        cancel_all()
        if not received:
            received.append(number)
            raise SystemExit(128 + number)

    def interrupt(number: int, frame: FrameType | None) -> None:
        cancel_all()
        interrupts.append(number)
        signal.default_int_handler(number, frame)

    before = {each: signal.signal(each, end) for each in handled}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        for each, handler in before.items():
            is_over = each == signal.SIGINT and (received or interrupts)
            signal.signal(each, signal.SIG_DFL if is_over else handler)
        if received:
            raise SystemExit(128 + received[0])
