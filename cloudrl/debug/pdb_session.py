"""A terminal session with Ray's legacy debugger: pdb as text over a connection (Ray 2.60, ray/util/rpdb.py)."""

from __future__ import annotations

import codecs
import re
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from cloudrl.debug.console import Console
from cloudrl.debug.session import End
from cloudrl.protocol.stops import Stop

_PROMPT = re.compile(r"(?:\(+(?:Pdb|com)\)+|>>>|\.\.\.|ipdb>) $")
_COMMANDS_PROMPT = re.compile(r"\(+com\)+ $")
_OWN_PROMPT = re.compile(r"(?:\(+Pdb\)+|ipdb>) $")
_LOOK_S, _SILENT_S, _LEAVE_S = 0.5, 1.0, 15.0
_LONGEST_LINE = 1 << 20
_CONTINUE = ("c", "cont", "continue", "remote", "get")
"""After these Ray closes the connection. The last two stop in the next task, or where this one returns to."""
_QUIT = ("q", "quit", "exit")
_NEXT = ("np", "next paused")


class PdbSession:
    """Passes lines on, and shows what comes back.

    `q` lets the task go on, as in the other session: pdb's own would end it with BdbQuit. The arguments are those of
    `Session`; `connection` is closed at the end.

    Attributes:
        lost: why the connection broke, at the end of a session.
    """

    def __init__(self, connection: socket.socket, stop: Stop, console: Console) -> None:
        self._socket, self._stop = connection, stop
        self._read, self._say, self._note, self._confirm = console.read, console.say, console.note, console.confirm
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""
        self._is_open = True
        self._end: End | None = None
        self.lost = ""

    def run(self) -> End:
        """Read commands until the task goes on."""
        try:
            while self._end is None:
                self._show_answer()
                if self._end is None:
                    self._ask()
        except OSError as error:
            self._end, self.lost = End.LOST, f"the connection to the debugger broke: {error}"
        finally:
            self._socket.close()
        return self._end

    def _ask(self) -> None:
        """What is typed, to pdb; the text before it is its own prompt."""
        prompt, self._pending = self._pending, ""
        is_over = False
        try:
            line = self._read(prompt)
        except EOFError:
            line, is_over = "q", True
        except KeyboardInterrupt:
            self._note("q leaves; the task goes on then")
            self._pending = prompt
            return
        word = line.strip()
        if word in _QUIT and not is_over and not self._wants_to_leave():
            self._pending = prompt
        elif word in (*_QUIT, *_NEXT):
            self._pending = prompt
            self._leave(End.NEXT if word in _NEXT else End.LEFT)
        else:
            self._send(line)
            if word.partition(" ")[0] in _CONTINUE:
                self._show_answer(is_last=True)

    def _wants_to_leave(self) -> bool:
        try:
            return self._confirm("Leave? The task goes on without a debugger.")
        except (EOFError, KeyboardInterrupt):
            return False

    def _leave(self, end: End) -> None:
        """Let the task go on. That needs pdb's own prompt: the end of the connection is `quit` for Ray's own pdb."""
        try:
            is_asked = self._comes_to_its_prompt()
            self._pending = ""
            self._send("c")
            if is_asked:
                self._read_for(_LEAVE_S, lambda: False)
        except KeyboardInterrupt:
            is_asked = False
            self._send("c")  # read when pdb has done what it does now
        if not is_asked:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
        self._end = end
        self._note("the task goes on without a debugger")

    def _comes_to_its_prompt(self) -> bool:
        """Out of the lines of `commands`, once pdb has done what it does now."""
        if not self._pending:
            self._note("waiting until pdb is done with the last line; Ctrl-C leaves at once")
            self._read_for(None, lambda: bool(_PROMPT.search(self._pending)))
        if _COMMANDS_PROMPT.search(self._pending):
            self._pending = ""
            self._send("end")
            self._read_for(_LEAVE_S, lambda: bool(_PROMPT.search(self._pending)))
        return bool(_OWN_PROMPT.search(self._pending))

    def _read_for(self, timeout_s: float | None, is_there: Callable[[], bool]) -> None:
        """Until something is there; an error of the connection or its end is the end as well."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not is_there() and (end is None or time.monotonic() < end):
            if select.select([self._socket], [], [], _LOOK_S)[0] and not self._receive():
                return

    def _show_answer(self, *, is_last: bool = False) -> None:
        """Until pdb asks again; with `is_last` it may also hang up."""
        silent_s = 0.0
        try:
            while not _PROMPT.search(self._pending) and silent_s < _SILENT_S:
                if select.select([self._socket], [], [], _LOOK_S)[0]:
                    silent_s = 0.0
                    if not self._receive():
                        self._hung_up(expected=is_last)
                        return
                elif self._pending:  # some other question, such as that of input()
                    silent_s += _LOOK_S
        except KeyboardInterrupt:
            if self._wants_to_leave():
                self._leave(End.LEFT)

    def _receive(self) -> bool:
        chunk = self._socket.recv(65536)
        self._pending += self._decoder.decode(chunk, final=not chunk).replace("\r\n", "\n")
        *lines, self._pending = self._pending.split("\n")
        for line in lines:
            self._say(line)
        if len(self._pending) > _LONGEST_LINE:
            self._say(self._pending)
            self._pending = ""
        return bool(chunk)

    def _hung_up(self, *, expected: bool) -> None:
        if self._pending:
            self._say(self._pending)
        if expected:
            self._end = End.LEFT
            self._note("the task goes on without a debugger, to its next breakpoint()")
        else:
            self._end, self.lost = End.LOST, "the connection to the debugger was closed"

    def _send(self, line: str) -> None:
        # an empty line after it would do the same once more
        self._socket.sendall(f"{line.rstrip()}\n".encode("utf-8", "replace"))
