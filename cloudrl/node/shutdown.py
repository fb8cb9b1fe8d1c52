"""How the agent learns that it has to end: a signal, or the loss of whoever started it."""

import contextlib
import os
import queue
import signal
import threading
from types import FrameType
from typing import Optional

from cloudrl.protocol.outcome import ENDED_BY

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""dstack sends SIGINT to the shell only and kills after 10 s: the task's last command is `exec python3 ...`."""

RELEASE = b"detach"


class Shutdown(Exception):
    """The agent was asked to end."""

    def __init__(self, why: str, exit_code: int) -> None:
        super().__init__(why)
        self.exit_code = exit_code


class ShutdownRequest:
    """Remembers the first reason to end; the phases ask for it between any two polls.

    What wakes the main thread is a `SimpleQueue`: the handler of a signal runs in that very thread, maybe amid its
    wait, and may put something there; of `threading.Event` it might want the lock that it holds itself.
    """

    def __init__(self) -> None:
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._why: Optional[Shutdown] = None

    def listen(self, lease_fd: Optional[int]) -> None:
        """Take the signals, and watch the starter's pipe if there is one. Main thread only."""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        if lease_fd is not None:
            threading.Thread(target=self._watch_lease, args=(lease_fd,), daemon=True).start()

    def set(self, why: Shutdown) -> None:
        """Ask to end; only the first reason counts."""
        self._why = self._why or why
        self._woken.put(None)

    @property
    def asked(self) -> bool:
        """Whether there is a reason already."""
        return self._why is not None

    def pause(self, seconds: float) -> None:
        """Wait, and raise as soon as the end is asked for.

        Raises:
            Shutdown: with the reason.
        """
        if self._why is None:
            with contextlib.suppress(queue.Empty):
                self._woken.get(timeout=max(0.0, seconds))
        if self._why is not None:
            raise self._why

    def _on_signal(self, number: int, _frame: Optional[FrameType]) -> None:
        self.set(Shutdown(f"{ENDED_BY}{signal.Signals(number).name}", 128 + number))

    def _watch_lease(self, fd: int) -> None:
        """The starter holds the other end until the cluster is ready; if it dies before, so do we."""
        with os.fdopen(fd, "rb") as pipe:
            if RELEASE not in pipe.read():
                self.set(Shutdown("the command that started this cluster has died", 1))
