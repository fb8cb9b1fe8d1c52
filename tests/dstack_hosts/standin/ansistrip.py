"""What a terminal would show at the end, a line at a time: carriage returns overwrite, colours vanish.

Lines are held back as the true runner holds them: until nothing has moved the cursor for half a second, or for three
seconds. A line without its end is never given out before the job's own end.

Source: github.com/dstackai/ansistrip; dstack, runner/internal/runner/executor/executor.go (AnsiStrip*).
"""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Callable

_STILL_S = 0.5
_AT_LEAST_EVERY_S = 3.0
_MAX_CHARACTERS = 32 << 10
_TOKEN = re.compile(r"\x1b\[\??([\d;]*)([@-~])|\x1b\[[\d;]*\Z|\x1b.?|[\n\r\b]|[^\x1b\n\r\b]+", re.DOTALL)
_UP_DOWN, _LEFT_RIGHT = {"A": -1, "B": 1}, {"C": 1, "D": -1}


class Stripper:
    """The lines of one job's output. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._decode = codecs.getincrementaldecoder("utf-8")("ignore").decode
        self._rest = ""  # the beginning of an escape sequence
        self._lines: dict[int, list[str]] = {}
        self._x = self._y = 0
        self._moved: float | None = None
        self._flushed = clock()

    def write(self, data: bytes) -> None:
        """Take what the job has written."""
        text, self._rest = self._rest + self._decode(data), ""
        for token in _TOKEN.finditer(text):
            if token[0].startswith("\x1b") and not token[2] and token.end() == len(text):
                self._rest = token[0]
            else:
                self._apply(token[0], token[1] or "", token[2] or "")

    def due(self) -> bytes:
        """The whole lines that are not held back any longer."""
        now = self._clock()
        is_still = self._moved is not None and now - self._moved >= _STILL_S
        is_full = sum(map(len, self._lines.values())) > _MAX_CHARACTERS
        if not (is_still or is_full or now - self._flushed >= _AT_LEAST_EVERY_S):
            return b""
        self._flushed, self._moved = now, None
        return self._take(self._y)

    def rest(self) -> bytes:
        """All that is left; a last line without an end gets one."""
        return self._take(max(self._lines, default=0) + 1)

    def _take(self, end: int) -> bytes:
        numbers = sorted(number for number in self._lines if number < end)
        return "".join("".join(self._lines.pop(number)).rstrip(" \0") + "\n" for number in numbers).encode()

    def _apply(self, token: str, numbers: str, command: str) -> None:
        count = int(numbers.split(";", maxsplit=1)[0] or 1) if numbers.strip(";") else 1
        if token == "\n":
            self._x, self._y = 0, self._y + 1  # an empty line leaves nothing
            return
        if token == "\r":
            self._x = 0
        elif token == "\b":
            self._x = max(0, self._x - 1)
        elif command in _UP_DOWN:
            self._y = max(0, self._y + count * _UP_DOWN[command])
        elif command in _LEFT_RIGHT:
            self._x = max(0, self._x + count * _LEFT_RIGHT[command])
        elif command == "K":
            del self._lines.get(self._y, [])[0 if numbers == "2" else self._x :]
        else:
            if not token.startswith("\x1b"):
                self._print(token)
            return
        self._moved = self._clock()

    def _print(self, text: str) -> None:
        line = self._lines.setdefault(self._y, [])
        shown = [character for character in text if character >= " "]
        line += " " * (self._x - len(line))
        line[self._x : self._x + len(shown)] = shown
        self._x += len(shown)
