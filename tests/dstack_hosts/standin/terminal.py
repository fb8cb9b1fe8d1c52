"""The job's process: session leader on a terminal of its own, and how dstack stops it.

The interrupt character goes to the terminal, so that SIGINT reaches the foreground process group; SIGHUP to the whole
session after 5 s, SIGKILL after 10 s. The runner stays reachable until the job has ended. Source: dstack 0.22.5,
runner/internal/runner/executor/terminate.go; pull requests 4281 and 4283.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path

from .home import JobUser

_POLL_S = 0.1
_INTERRUPT = b"\x03"


class Terminal:
    """A running command and the master side of its terminal."""

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str],
        folder: str,
        user: JobUser,
        *,
        hang_up_s: float = 5.0,
        kill_s: float = 10.0,
    ) -> None:
        self._hang_up_s, self._kill_s = hang_up_s, kill_s
        self._master, slave = pty.openpty()
        os.chown(os.ttyname(slave), user.uid, -1)
        try:
            self._process = subprocess.Popen(
                command, env=environment, cwd=folder, stdin=slave, stdout=slave, stderr=slave,
                preexec_fn=lambda: _become_leader(user),  # noqa: PLW1509 - only system calls
            )  # fmt: skip
        finally:
            os.close(slave)

    def copy_output(self, write: Callable[[bytes], bool]) -> bool:
        """Hand on what is written until no process has the terminal open; False when `write` refused some.

        A background process that keeps the terminal open keeps the job open, as in the true runner.
        """
        try:
            while data := os.read(self._master, 32768):
                if not write(data):
                    self.kill()
                    return False
        except OSError:
            pass  # EIO: all have closed it
        return True

    def wait(self) -> int:
        """The exit status; -1 after a signal, as Go's ExitCode()."""
        status = self._process.wait()
        os.close(self._master)
        return status if status >= 0 else -1

    def kill(self) -> None:
        """SIGKILL to the command alone."""
        self._process.kill()

    def stop(self) -> None:
        """Stop it, in a thread."""
        threading.Thread(target=self._stop_in_stages, daemon=True).start()

    def _stop_in_stages(self) -> None:
        session = self._process.pid
        os.write(self._master, _INTERRUPT)
        if _ends_within(session, self._hang_up_s):
            return
        for pid in session_pids(session):
            _signal(pid, signal.SIGHUP)
            _signal(pid, signal.SIGCONT)
        if not _ends_within(session, self._kill_s - self._hang_up_s):
            for pid in session_pids(session):
                _signal(pid, signal.SIGKILL)


def session_pids(session: int, proc: Path = Path("/proc")) -> list[int]:
    """The live processes of a session: zombies, this process and the first one are left out."""
    found = []
    for entry in proc.iterdir():
        fields = _stat(entry) if entry.name.isdigit() else None
        # after the command's name: state, parent, process group, session
        if fields and fields[0] != "Z" and fields[3] == str(session) and int(entry.name) not in (1, os.getpid()):
            found.append(int(entry.name))
    return found


def _stat(entry: Path) -> list[str] | None:
    try:
        return (entry / "stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None


def _ends_within(session: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while session_pids(session):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _become_leader(user: JobUser) -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if os.geteuid() == 0:  # else it is this one's own
        os.setgroups(user.groups)
        os.setgid(user.gid)
        os.setuid(user.uid)
