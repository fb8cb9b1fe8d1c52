"""The last line of a terminal: text that is rewritten in place, and a clock on it while nothing else is said."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from cloudrl.cli import _output

_TICK_S = 1.0


class StatusLine:
    """The last line of the terminal. Threads share it.

    Args:
        clock: seconds that never run backwards.
        stream: of the terminal; None for standard error.

    Attributes:
        rewrites: whether it is a terminal, whose lines can be rewritten.
        changed_at: when it was last shown or closed, by the clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self.rewrites = self._stream.isatty()
        self._clock, self._lock = clock, threading.RLock()
        self.changed_at = clock()
        self._is_open = self._is_clock = False

    def show(self, text: str) -> None:
        """Show `text` in place of what stood there; as a line of its own where lines cannot be rewritten."""
        if not self.rewrites:
            _output.note(text)
            return
        with self._lock:
            self._write(text)
            self._is_open, self._is_clock, self.changed_at = True, False, self._clock()

    def close(self) -> None:
        """Go to the next line; a clock leaves no line behind."""
        with self._lock:
            if self._is_clock:
                self._write("")
            elif self._is_open:
                self._stream.write("\n")
                self._stream.flush()
            self._is_open, self._is_clock, self.changed_at = False, False, self._clock()

    def tick(self, what: str, began: float) -> None:
        """Say what is being done and since when, unless something else stands there or has just been said."""
        from cloudrl.units import duration_text

        with self._lock:
            now = self._clock()
            if self._is_clock or (not self._is_open and now - self.changed_at >= _TICK_S):
                self._write(f"{what} for {duration_text(now - began)}")
                self._is_clock = True

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """A clock on a line that is rewritten while a block is silent, such as `checking the job for 4 s`."""
        if not self.rewrites:
            yield
            return
        ended, began = threading.Event(), self._clock()

        def run() -> None:
            while not ended.wait(_TICK_S):
                self.tick(what, began)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            with self._lock:
                if self._is_clock:
                    self.close()

    def _write(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        shown = "".join(character for character in text if character.isprintable())[:width]
        self._stream.write(f"\r\x1b[K{shown}")
        self._stream.flush()
