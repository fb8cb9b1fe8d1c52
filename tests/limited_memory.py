"""A limit on the memory of a cluster on this machine: that of a control group, as a container has it."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from patience import SLOWER

GROUPS = {"memory": ("memory.limit_in_bytes", "/sys/fs/cgroup/memory"), "": ("memory.max", "/sys/fs/cgroup")}
"""The name of a hierarchy in /proc/self/cgroup, in version 1 and 2 -> its file of limits, and where it is mounted."""


@contextmanager
def little_memory(limit_bytes: int) -> Iterator[None]:
    """Whatever this process starts has so much memory together."""
    places = dict(re.findall(r"^\d+:([^:\n]*):(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE))
    name = "memory" if "memory" in places else ""
    limit, mount = GROUPS[name]
    group = Path(mount, f"cloudrl-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / limit).write_text(str(limit_bytes))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"NOT TESTED: a group of processes with a limit of memory cannot be made here ({error})")
    try:
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        Path(mount, places[name].lstrip("/"), "cgroup.procs").write_text(str(os.getpid()))
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)
        until(lambda: not (group / "cgroup.procs").read_text(), 10)
        group.rmdir()


def until(is_so: Callable[[], bool], limit_s: float) -> None:
    """Wait for it, in seconds of a quiet machine."""
    deadline = time.monotonic() + limit_s * SLOWER
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(2)
