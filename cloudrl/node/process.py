"""Children of the agent: they log to a file, die with the agent, and are ended by process id, never by name."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Callable, Iterable, List, Mapping, Optional, Sequence, Set

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Make this process the parent of grandchildren whose own parent dies, so that none escapes (prctl(2))."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _die_with(parent: int) -> Callable[[], None]:
    def in_child() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the agent died between fork and prctl
            os._exit(1)

    return in_child


class Child:
    """One process with its own session, its output in one file, bound to the life of this process.

    PDEATHSIG follows the THREAD that forked (prctl(2)): start children from a thread that lives as long as the
    child shall.
    """

    def __init__(
        self, command: Sequence[str], *, log: Path, env: Mapping[str, str], cwd: Optional[Path] = None
    ) -> None:
        self.command = tuple(command)
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            self._start = out.tell()
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509  it calls prctl and getppid only
            )

    @property
    def pid(self) -> int:
        """Process id; also the id of the child's session and process group."""
        return self._process.pid

    def poll(self) -> Optional[int]:
        """The exit status, negative for a signal, or None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> Optional[int]:
        """Wait for the end; None when it still runs after `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def tail(self, lines: int = 20) -> str:
        """The last lines that the child wrote."""
        with self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._start, size - 16_384))
            text = file.read().decode("utf-8", "replace")
        return "\n".join(text.splitlines()[-lines:])

    def end(self, grace_s: float = 5.0) -> Optional[int]:
        """SIGTERM to its whole group, SIGKILL after `grace_s` seconds."""
        if self.poll() is None:
            _signal_group(self.pid, signal.SIGTERM)
            self.wait(grace_s)
        _signal_group(self.pid, signal.SIGKILL)
        return self.wait(grace_s)


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return  # the group is empty already


def descendants(root: int) -> Set[int]:
    """Process ids of all living descendants of `root`, from /proc."""
    children: dict[int, List[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found: Set[int] = set()
    stack = [root]
    while stack:
        for pid in children.get(stack.pop(), ()):
            if pid not in found:
                found.add(pid)
                stack.append(pid)
    return found


def _parents() -> Iterable[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            state, parent = stat.rpartition(")")[2].split()[:2]
            if state != "Z":
                yield int(entry.name), int(parent)


def end_descendants(grace_s: float = 2.0) -> None:
    """End whatever this process, a subreaper, still has below it, the newborn too: SIGTERM, then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        told: Set[int] = set()
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline:
            left = descendants(os.getpid())
            if not left:
                break
            for pid in left - told:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            told |= left
            _reap()
            time.sleep(0.02)
    _reap()


def _reap() -> None:
    """Collect orphans that came to us and ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
