"""Control groups of a lab (version 1): one of its own in each hierarchy, named after the lab's folder."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_END_S = 10.0


def name_for(folder: Path) -> str:
    """The name that a lab's groups have in all hierarchies; two labs never share one."""
    return str(folder).strip("/").replace("/", "-")


def hierarchies() -> list[str]:
    """Names of the folders of all hierarchies of version 1, such as `memory`; none where there is version 2 alone."""
    lines = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return sorted({Path(words[1]).name for words in lines if words[2] == "cgroup" and Path(words[1]).parent == _MOUNT})


def remove(name: str, timeout_s: float = _END_S) -> None:
    """Remove the groups `name` and all below; the last of their processes may be about to end.

    Raises:
        TimeoutError: some are still in use.
    """
    deadline = time.monotonic() + timeout_s
    while remaining := [path for hierarchy in hierarchies() if (path := _MOUNT / hierarchy / name).exists()]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"control groups in use after {timeout_s:.0f} s: {', '.join(map(str, remaining))}")
        for path in remaining:
            _remove_tree(path)
        time.sleep(0.01)


def _remove_tree(group: Path) -> None:
    for folder, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):  # in use, or gone
            os.rmdir(folder)
