"""The duty of a namespace's first process: to collect the children that nobody else waits for."""

from __future__ import annotations

import os


def reap_until(main_pid: int) -> int:
    """Collect children until `main_pid` has ended; its exit status, 128 + N after signal N."""
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            return 0
        if pid == main_pid:
            return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
