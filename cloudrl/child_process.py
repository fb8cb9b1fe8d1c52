"""Child processes that log to a file, die with their parent, and are ended by process id, never by name."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from cloudrl.private_files import open_file

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 2.0
_LIBC = ctypes.CDLL(None, use_errno=True)

# A process has one set of children, whoever in it started them. Held while one starts, and while others are collected:
# who is not in here is an orphan that came to us.
_LOCK = threading.Lock()
_STARTED: Dict[int, subprocess.Popen[bytes]] = {}


def self_command(*words: str) -> List[str]:
    """The command that runs this same file under this same Python."""
    return [sys.executable, str(Path(sys.argv[0]).absolute()), *words]


def adopt_orphans() -> None:
    """Make this process the parent of grandchildren whose own parent dies, so that none escapes (prctl(2))."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int) -> Callable[[], None]:
    """What a forked process calls to be killed when `parent`, which has forked it, dies."""

    def in_child() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died between fork and prctl
            os._exit(1)

    return in_child


class Child:
    """One process with its own session, its output in one file, bound to the life of this process.

    PDEATHSIG follows the THREAD that forked (prctl(2)): start children from a thread that lives as long as the
    child shall.

    Args:
        pass_fds: Descriptors that it inherits.
        bound: False for a child that ends by itself when this process closes one of them, and so when it dies.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str],
        cwd: Optional[Path] = None,
        pass_fds: Sequence[int] = (),
        bound: bool = True,
    ) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab", opener=open_file) as out, _LOCK:
            self._start = out.tell()
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
                pass_fds=pass_fds,
                preexec_fn=die_with(os.getpid()) if bound else None,  # noqa: PLW1509  it calls prctl and getppid only
            )
            _STARTED[self.pid] = self._process

    @property
    def pid(self) -> int:
        """Process id; also the id of the child's session and process group."""
        return self._process.pid

    def poll(self) -> Optional[int]:
        """The exit status, negative for a signal, or None while it runs."""
        return self._known(self._process.poll())

    def wait(self, timeout_s: float) -> Optional[int]:
        """Wait for the end; None when it still runs after `timeout_s`."""
        try:
            return self._known(self._process.wait(timeout_s))
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
        """SIGTERM to its whole group, SIGKILL after `grace_s` seconds.

        Once it has ended its number may be another's, also as that of a group. Not while somebody of the old group
        lives; so the group is signalled if one below us is in it. Who was below the child is, if this process has
        adopted its orphans.
        """
        if self.poll() is None:
            _signal_group(self.pid, signal.SIGTERM)
            self.wait(grace_s)
        processes = _processes()
        if self.poll() is None or any(processes[pid][1] == self.pid for pid in _below(os.getpid(), processes)):
            _signal_group(self.pid, signal.SIGKILL)
        return self.wait(grace_s)

    def _known(self, status: Optional[int]) -> Optional[int]:
        """Once its status is known, its number may go to an orphan."""
        if status is not None:
            with _LOCK:
                if _STARTED.get(self.pid) is self._process:
                    del _STARTED[self.pid]
        return status


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the group is empty already
        os.killpg(group, number)


def descendants(root: int) -> Set[int]:
    """Process ids of all living descendants of `root`, from /proc."""
    return _below(root, _processes())


def marked(variable: str, value: str) -> Set[int]:
    """Process ids of all living processes that have `variable=value` in their environment, and of all below them.

    The environment alone does not do: a process that sets its title may overwrite it, as `setproctitle` does. With Ray
    2.60 those are the agents of the dashboard and of runtime environments, and the dashboard's modules.
    """
    text, processes = f"{variable}={value}".encode(), _processes()
    found: Set[int] = set()
    for pid in processes:
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if text in Path("/proc", str(pid), "environ").read_bytes().split(b"\0"):
                found.add(pid)
    return found.union(*(_below(pid, processes) for pid in found))


def _below(root: int, processes: Mapping[int, Tuple[int, int]]) -> Set[int]:
    below: Set[int] = set()
    newest = {root}
    while newest:
        newest = {pid for pid, (parent, _) in processes.items() if parent in newest} - below
        below |= newest
    return below


def _processes() -> Dict[int, Tuple[int, int]]:
    """Parent and group of all processes that live (proc(5), /proc/pid/stat)."""
    processes = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                # a name may be cut in the middle of a character
                state, parent, group = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:3]
                if state != b"Z":
                    processes[int(entry.name)] = int(parent), int(group)
    return processes


def end_descendants() -> None:
    """End whatever this process, a subreaper, still has below it, the newborn too: SIGTERM, then SIGKILL."""
    _end(lambda: descendants(os.getpid()))


def end_orphans() -> None:
    """End those below this process, a subreaper, that a dead child has left; its living children keep theirs."""
    _end(_orphans)


def _orphans() -> Set[int]:
    with _LOCK:
        processes, ours = _processes(), set(_STARTED)
    orphans = {pid for pid, (parent, _) in processes.items() if parent == os.getpid()} - ours
    return orphans.union(*(_below(pid, processes) for pid in orphans))


def _end(find: Callable[[], Set[int]]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        signalled: Set[int] = set()
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline and (living := find()):
            for pid in living - signalled:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            signalled |= living
            reap_orphans()
            time.sleep(0.02)
    reap_orphans()


def reap_orphans() -> None:
    """Collect the orphans that came to us and ended; the status of a `Child` is left for whoever asks it."""
    with _LOCK, contextlib.suppress(ChildProcessError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            child = _STARTED.get(ended.si_pid)
            if child is None:
                os.waitpid(ended.si_pid, os.WNOHANG)
            elif child.poll() is None:
                return  # another thread waits for it, and takes it in a moment
            else:
                del _STARTED[ended.si_pid]  # it remembers its status; one collected here, it hides no other
