"""A program in a terminal, and what a person sees of what it writes. Any code that we do not write is an error."""

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from child_processes import ended
from patience import SLOWER

_CODE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")
_SILENT_S = 120.0


class Page:
    """A terminal of that size; every line of its screen has to fit, others would wrap.

    Attributes:
        lines: of the page that programs start on.
        screen: rows of the other page, as they were when it was last shown.
        has_cursor: whether the cursor can be seen.
        is_screen: whether the other page is shown.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.lines, self.screen = [""], [""] * rows
        self.has_cursor, self.is_screen = True, False
        self._row = self._column = 0

    def write(self, text: str) -> None:
        """Show it."""
        at = 0
        for code in _CODE.finditer(text):
            self._print(text[at : code.start()])
            self._obey(code[1], code[2])
            at = code.end()
        self._print(text[at:])

    def _print(self, text: str) -> None:
        for each in text:
            if each == "\r":
                self._column = 0
            elif each == "\n":
                assert not self.is_screen, "a line feed could scroll the screen"
                self.lines.append("")
                self._column = 0
            else:
                assert each.isprintable(), f"{each!r} steers the terminal"
                self._put(each)

    def _put(self, character: str) -> None:
        page, row = (self.screen, self._row) if self.is_screen else (self.lines, len(self.lines) - 1)
        assert not self.is_screen or self._column < self.columns, f"wider than {self.columns}: {page[row]}"
        page[row] = page[row].ljust(self._column)[: self._column] + character + page[row][self._column + 1 :]
        self._column += 1

    def _obey(self, values: str, code: str) -> None:
        if code == "H":
            self._row, self._column = [int(value) - 1 for value in (values or "1;1").split(";")]
        elif code == "K" and self.is_screen:
            self.screen[self._row] = self.screen[self._row][: self._column]
        elif code == "K":
            self.lines[-1] = self.lines[-1][: self._column]
        elif (code, values) == ("J", "2") and self.is_screen:
            self.screen = [""] * self.rows
        elif values == "?25":
            self.has_cursor = code == "h"
        elif values == "?1049":
            self.is_screen = code == "h"
            self._column = 0
        else:
            assert code == "m", f"unknown code {values}{code}"


class Seen:
    """A program in a terminal, as long as it runs; its standard output is a pipe."""

    def __init__(self, process: "subprocess.Popen[bytes]", terminal: int, page: Page) -> None:
        self.process, self.page, self.sent = process, page, ""
        self._terminal, self._decoder = terminal, codecs.getincrementaldecoder("utf-8")()

    @property
    def screen(self) -> str:
        """What stands on the other page."""
        return "\n".join(self.page.screen)

    def read(self, until: str) -> None:
        """Until the program has written a text."""
        while until not in self.sent and self._read():
            pass
        assert until in self.sent

    def end(self) -> int:
        """Read to the end; the exit code."""
        while self._read():
            pass
        self.page.write(self.sent)
        return self.process.wait(20 * SLOWER)

    def _read(self) -> bool:
        assert select.select([self._terminal], [], [], _SILENT_S)[0], f"it waits, after\n{self.sent[-2000:]}"
        try:
            chunk = os.read(self._terminal, 65536)
        except OSError:  # the other end is closed
            return False
        self.sent += self._decoder.decode(chunk)
        return bool(chunk)


@contextmanager
def in_terminal(
    command: Sequence[str], columns: int, rows: int, *, env: Mapping[str, str] = os.environ, cwd: Path | None = None
) -> Iterator[Seen]:
    """Start a program in a terminal of that size."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
    environment = {key: value for key, value in env.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
    with subprocess.Popen(
        command, env={**environment, "TERM": "xterm-256color"}, cwd=cwd, stdin=theirs, stdout=subprocess.PIPE,
        stderr=theirs,
    ) as process, ended(process):  # fmt: skip
        os.close(theirs)
        try:
            yield Seen(process, ours, Page(columns, rows))
        finally:
            os.close(ours)
