"""Processes that a test has started and talks to."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from patience import SLOWER


def until(condition: Callable[[], object], what: str, *, timeout_s: float = 30.0) -> None:
    """Poll a condition that other processes, or threads, bring about; `timeout_s` is that of a quiet machine."""
    deadline, pause_s = time.monotonic() + SLOWER * timeout_s, 0.01
    while not condition():
        assert time.monotonic() < deadline, f"not within {SLOWER * timeout_s:.0f} s: {what}"
        time.sleep(pause_s)
        pause_s = min(0.1, 1.2 * pause_s)  # to look takes CPU time, from what is waited for


@contextmanager
def ended(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> Iterator[None]:
    """Kill it in the end. A `with Popen(...)` alone waits for it, for ever when the test has failed and it hangs."""
    try:
        yield
    finally:
        process.kill()
