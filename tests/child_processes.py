"""Processes that a test has started and talks to."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> Iterator[None]:
    """Kill it in the end. A `with Popen(...)` alone waits for it, for ever when the test has failed and it hangs."""
    try:
        yield
    finally:
        process.kill()
