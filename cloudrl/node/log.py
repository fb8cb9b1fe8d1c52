"""The agent's own lines: to standard output, which dstack and Slurm keep, and to a file in its run folder."""

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

from cloudrl.private_files import make_folder, open_file


class Log:
    """One line a call, with time and rank; few lines, since dstack fails a run after 50 MB in an hour.

    A line that cannot be written, to a full disk or with no descriptor left, is lost, and nothing fails because of it.
    """

    def __init__(self, path: Path, rank: int) -> None:
        self.path = path
        self._rank = rank
        self._lock = threading.Lock()
        make_folder(path.parent)
        os.close(open_file(path, os.O_WRONLY | os.O_CREAT))

    def line(self, text: str) -> None:
        """Write one event; several lines of text stay together."""
        stamp = time.strftime("%H:%M:%S")
        self._write(f"[{stamp} rank {self._rank}] {text}\n")

    def verdict(self, text: str) -> None:
        """Write a line that stands alone, without time and rank, for programs to find."""
        self._write(text + "\n")

    def _write(self, text: str) -> None:
        with self._lock:
            with contextlib.suppress(OSError), self.path.open("a", encoding="utf-8") as file:
                file.write(text)
            with contextlib.suppress(OSError):
                sys.stdout.write(text)
                sys.stdout.flush()
