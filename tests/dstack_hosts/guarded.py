"""A folder and a set of namespaces that end together: when they are told to, or when this process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_GUARDIAN = Path(__file__).with_name("guardian.py")
_END_S = 60.0


class Guarded:
    """What a lab lives in.

    Args:
        folder: exists; `disks` in it is a tmpfs that only the namespaces see.
        gateway: address of the bridge inside, with the network's bits.
        guarded: False to go on when this process ends, until `end`.

    Raises:
        ChildProcessError: it could not start; the reason is in `lab.log`.
    """

    def __init__(self, folder: Path, gateway: str, *, guarded: bool = True) -> None:
        self._folder = folder
        starter = str(os.getpid()) if guarded else "-"
        with (folder / "lab.log").open("ab") as log:
            self._guardian = subprocess.Popen(
                [sys.executable, "-IS", str(_GUARDIAN), str(folder), gateway, starter],
                stdin=subprocess.PIPE if guarded else subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
        assert self._guardian.stdout is not None
        line = self._guardian.stdout.readline()
        if not line:
            reason = (folder / "lab.log").read_text(errors="replace") if folder.exists() else ""
            self.stop()
            raise ChildProcessError(f"the lab's guardian has ended at once: {reason}")
        self.first_process = int(line)

    def stop(self) -> None:
        """End everything and wait until nothing of it is left. A second call does nothing."""
        self._guardian.terminate()
        self._guardian.wait(_END_S)
        for pipe in (self._guardian.stdin, self._guardian.stdout):
            if pipe is not None:
                pipe.close()


def end(folder: Path, timeout_s: float = _END_S) -> None:
    """End what lives in `folder`, whoever started it. Raises TimeoutError."""
    file = folder / "lab.pid"
    if file.exists():
        guardian = int(file.read_text().split()[0])
        if str(_GUARDIAN) in Path(f"/proc/{guardian}/cmdline").read_text().split("\0"):
            os.kill(guardian, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while folder.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{folder} is still there after {timeout_s:.0f} s")
        time.sleep(0.02)
