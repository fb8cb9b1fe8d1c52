"""Commands of a user of the lab: the dstack CLI, cloudrl, curl."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

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
        "DSTACK_SERVER_DIR": str(home / ".dstack/server"),
    }


class Client:
    """A running command. What it prints, on both streams, can be read at any time.

    `finish` or `close` must follow, or the end of the lab, which closes it.
    """

    def __init__(self, lab_process: int, words: list[str], folder: Path, environment: dict[str, str]) -> None:
        self._words = words
        self._text = ""
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - as long as this object
        self._process = namespaces.popen(
            lab_process, namespaces.in_folder(folder, words), env=environment,
            stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT,
        )  # fmt: skip

    @property
    def output(self) -> str:
        """All it has printed so far."""
        if not self._output.closed:
            self._text = os.pread(self._output.fileno(), 1 << 26, 0).decode(errors="replace")
        return self._text

    @property
    def pid(self) -> int:
        """Its number outside. Raises ChildProcessError when it has ended."""
        return namespaces.inside(self._process)

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._output.closed

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL. What it has started goes on, until the lab ends."""
        os.kill(self.pid, signal.SIGKILL)

    def finish(self, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Wait for its end. Raises TimeoutExpired with what it printed, after killing it."""
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise subprocess.TimeoutExpired(self._words, timeout_s, self.output) from None
        finally:
            self.close()
        return subprocess.CompletedProcess(self._words, status, self.output, "")

    def close(self) -> None:
        """Kill it, if it still runs, and keep what it has printed."""
        if self._process.poll() is None:
            with contextlib.suppress(ChildProcessError, ProcessLookupError):
                self.kill()
            self._process.wait()
        self._text = self.output
        self._output.close()
