"""Commands of a user of the lab: the dstack CLI, cloudrl, curl."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from patience import SLOWER

import cloudrl

from . import namespaces


def client_environment(home: Path) -> dict[str, str]:
    """A clean environment with a private HOME: ~/.dstack and ~/.ssh/config are looked for there."""
    return {
        "HOME": str(home),
        "TMPDIR": str(home.parent / "tmp"),  # dstack's tunnels have folders with keys there
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "COLUMNS": "200",
        "NO_COLOR": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": str(Path(cloudrl.__file__).parents[1]),  # this checkout, even where another one is installed
        "DSTACK_SERVER_DIR": str(home / ".dstack/server"),
    }


class Entered:
    """A command as a process of its own kind."""

    def __init__(self, lab_process: int, words: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 - as long as this object
        self._process = namespaces.popen(
            lab_process, namespaces.in_folder(folder, words), env=environment,
            stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def wait(self, timeout_s: float | None) -> int | None:
        """The exit status; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def signal(self, number: int) -> None:
        """Send it a signal."""
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            os.kill(namespaces.inside(self._process), number)


class Forked:
    """A command of `prefork`: its imports are done."""

    def __init__(self, path: Path, words: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 - as long as this object
        self._status: int | None = None
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        request = json.dumps({"words": words, "folder": str(folder), "environment": environment})
        socket.send_fds(self._socket, [request.encode()], [self.output.fileno()])

    def wait(self, timeout_s: float | None) -> int | None:
        """The exit status; None while it runs."""
        if self._status is None:
            self._socket.settimeout(timeout_s)
            with contextlib.suppress(TimeoutError, BlockingIOError):
                self._status = int(self._socket.recv(16) or -signal.SIGKILL)
                self._socket.close()
        return self._status

    def signal(self, number: int) -> None:
        """Send it a signal."""
        if self._status is None:
            self._socket.sendall(bytes([number]))


class Client:
    """A running command. What it prints, on both streams, can be read at any time.

    `finish` or `close` must follow, or the end of the lab, which closes it.
    """

    def __init__(self, words: list[str], process: Entered | Forked) -> None:
        self._words, self._process = words, process
        self._text = ""

    @property
    def output(self) -> str:
        """All it has printed so far."""
        if not self.closed:
            self._text = os.pread(self._process.output.fileno(), 1 << 26, 0).decode(errors="replace")
        return self._text

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self._process.wait(0)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._process.output.closed

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._process.signal(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL. What it has started goes on, until the lab ends."""
        self._process.signal(signal.SIGKILL)

    def finish(self, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Wait for its end; `timeout_s` is that of a quiet machine.

        Raises TimeoutError with what it printed, after killing it.
        """
        try:
            status = self._process.wait(SLOWER * timeout_s)
            if status is None:
                raise TimeoutError(f"{self._words} runs for {SLOWER * timeout_s:.0f} s and has printed:\n{self.output}")
        finally:
            self.close()
        return subprocess.CompletedProcess(self._words, status, self.output, "")

    def close(self) -> None:
        """Kill it, if it still runs, and keep what it has printed."""
        if self.returncode is None:
            self.kill()
            self._process.wait(None)
        self._text = self.output
        self._process.output.close()
