"""Commands in the namespaces of other processes.

No namespace has a name. Each lives as long as a process in it, so that the kernel takes everything away, mounts and
cables included, when the first process of the lab dies.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_CHILD_S = 10.0


def enter(pid: int, *, pids: bool = True) -> list[str]:
    """The words that put a command into the network of process `pid`, and into all its other namespaces too.

    Args:
        pid: a process in them.
        pids: False for a command that must see the machine's own process numbers and files.
    """
    return ["nsenter", f"--target={pid}", "--all" if pids else "--net", "--"]


def unshare(*kinds: str) -> list[str]:
    """The words that put a command into new namespaces, all of which end with the process that asks for them."""
    new = (f"--{kind}" for kind in kinds)
    return ["unshare", *new, "--fork", "--kill-child", "--propagation", "private", "--"]


def in_folder(folder: Path | str, words: list[str]) -> list[str]:
    """A command in a folder: a change of mount namespaces loses the current one."""
    return ["sh", "-c", 'cd "$0" && exec "$@"', str(folder), *words]


def popen(pid: int, words: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a command inside; `inside` finds the process itself."""
    return subprocess.Popen([*enter(pid), *words], start_new_session=True, **options)


def inside(process: subprocess.Popen[bytes], depth: int = 1) -> int:
    """The number, outside, of the process that `popen` has started, `depth` generations below.

    Raises:
        ChildProcessError: it has ended, or did not start within 10 s.
    """
    pid = process.pid
    for _ in range(depth):
        pid = _only_child(pid, process)
    return pid


def _only_child(pid: int, process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + _CHILD_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except FileNotFoundError:
            break
        if children:
            return int(children[0])
        time.sleep(0.005)
    raise ChildProcessError(f"process {pid} has no child: {process.args!r} exited with {process.poll()}")


@contextmanager
def network_of(pid: int) -> Iterator[None]:
    """Put the calling thread, and what it starts, into the network of process `pid`."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as own, open(f"/proc/{pid}/ns/net") as other:
        _setns(libc, other.fileno())
        try:
            yield
        finally:
            _setns(libc, own.fileno())


def members(network: str) -> list[int]:
    """All processes whose network namespace is `network`, as `network_id` names it."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if network_id(pid) == network]


def network_id(pid: int | str) -> str:
    """The name that the kernel gives a process's network namespace; "" for one that has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def _setns(libc: ctypes.CDLL, descriptor: int) -> None:
    if libc.setns(descriptor, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"setns: {os.strerror(code)}")
