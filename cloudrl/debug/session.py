"""A terminal session with a process that debugpy has stopped: the commands and the look of pdb."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from cloudrl.debug import commands
from cloudrl.debug.breakpoints import Breakpoints
from cloudrl.debug.console import Console
from cloudrl.debug.dap import ConnectionLost, DapClient, NoAnswer, Refused
from cloudrl.debug.process import Busy, Frame, Process
from cloudrl.protocol.stops import Stop

_PACKAGE = "_ray_pkg_"
"""What the folders of working directories start with (Ray 2.60, _private/runtime_env/packaging.py)."""
_FIRST_STOP_S = 30.0
_LOOK_S = 5.0
_PAUSE_S = 5.0
_VALUE_CHARACTERS = 300
_NO_FAREWELL = "the debugger does not answer; the task goes on once it notices the lost connection"
_RUNS = "the task is running: c waits until it stops, Ctrl-C then stops it, q leaves"


class End(Enum):
    """How a session ended; the task goes on in all cases but `OVER`."""

    LEFT = "left"
    NEXT = "next"
    """The next stop of the cluster is wanted."""
    OVER = "over"
    """The process has ended."""
    LOST = "lost"
    """The connection broke."""


class Session:
    """Commands, read one by one until one of them ends the session.

    Args:
        client: of the stop, not yet attached.
        stop: what waits.
        console: who types.
        others: says which other tasks have stopped since it was asked last.
        folder: of the client's sources, where the job was submitted from.
    """

    def __init__(
        self,
        client: DapClient,
        stop: Stop,
        console: Console,
        *,
        others: Callable[[], Sequence[str]] = tuple,
        folder: Path | None = None,
    ) -> None:
        self._client, self._stop, self._folder = client, stop, folder
        self._read, self._say, self._note, self._confirm = console.read, console.say, console.note, console.confirm
        self._others = others
        self._process = Process(client)
        self._breakpoints = Breakpoints(self._process, stop.cwd)
        self._frames: list[Frame] = []
        self._current = self._at = self._listed = 0
        self._last = self._reason = ""
        self._differs: set[str] = set()
        self._end: End | None = None
        self._is_news = False
        """Whether the process has stopped at a place that was not shown yet."""
        self._goes_on = ""
        self.lost = ""
        """Why the connection broke, at the end of a session."""

    def run(self) -> End:
        """Attach, and obey until the end."""
        try:
            self._client.attach()
            self._wait(_FIRST_STOP_S)
            while self._end is None:
                self._ask()
        except (ConnectionLost, NoAnswer, Refused) as lost:
            self._end, self.lost = End.LOST, lost.message
        finally:
            if self._end is End.LOST:
                self._client.close()
            else:
                self._disconnect()
        return self._end

    def _disconnect(self) -> None:
        try:
            is_answered = self._client.disconnect()
        except KeyboardInterrupt:
            is_answered = False
            self._client.close()
        if self._goes_on:
            self._note(self._goes_on if is_answered else _NO_FAREWELL)

    # -- reading and obeying -----------------------------------------------------------------------------------

    @property
    def prompt(self) -> str:
        """Who is asked: the rank where there is one."""
        who = f"rank {self._stop.rank}" if self._stop.rank is not None else self._stop.actor or "task"
        return f"({who}) " if self._frames else f"({who}, running) "

    def _ask(self) -> None:
        try:
            typed = self._read(self.prompt)
        except KeyboardInterrupt:
            self._note("q leaves; the task goes on then")
            return
        except EOFError:
            self._leave(End.LEFT, ask=False)
            return
        self._drain()
        is_new = self._show_news()
        line = typed.strip() or self._last
        if self._end is None and line:
            self._last = line
            self._obey(line, is_new=is_new)

    def _obey(self, line: str, *, is_new: bool = False) -> None:
        """Do what a line says; with `is_new` the process has stopped while it was typed."""
        try:
            command, argument = commands.parse(line)
            if is_new and command in commands.RESUMING:
                raise Refused("it has stopped here meanwhile; type it again to go on")
            if not self._frames and command not in commands.WHILE_RUNNING:
                raise Refused(_RUNS)
            getattr(self, f"_{command}")(argument)
        except ConnectionLost:
            raise
        except (Refused, NoAnswer) as error:
            self._say(f"*** {error.message}")
        except KeyboardInterrupt:
            self._note("interrupted; what was asked may still be at work there")
        except Exception as error:  # noqa: BLE001  the task would lose its debugger
            self._note(f"this failed: {type(error).__name__}: {error}")

    # -- stops -------------------------------------------------------------------------------------------------

    def _wait(self, timeout_s: float | None = None) -> None:
        """Until the process stops again or ends; Ctrl-C stops it. A first stop has to come in time."""
        try:
            while not self._frames and self._end is None:
                try:
                    self._take(*self._client.next_event(timeout_s or _LOOK_S))
                except NoAnswer:
                    if timeout_s is not None:
                        raise
                    self._tell_others()
        except KeyboardInterrupt:
            self._pause()
        self._show_news()

    def _pause(self) -> None:
        self._note("stopping the task")
        thread = self._current or next((each.id for each in self._process.threads()), 0)
        self._process.resume("pause", thread)
        try:
            while not self._frames and self._end is None:
                self._take(*self._client.next_event(_PAUSE_S))
        except (NoAnswer, KeyboardInterrupt):
            self._note("it does not stop now: it waits in code that is not Python, such as a collective operation")

    def _drain(self) -> None:
        """What has happened meanwhile."""
        for name, body in self._client.events():
            self._take(name, body)

    def _take(self, name: str, body: Mapping[str, Any]) -> None:
        if name in ("terminated", "exited") and self._end is None:
            self._end = End.OVER
            self._note("the process has ended")
        elif name == "stopped":
            self._current = int(body.get("threadId") or 0)
            self._frames, self._at, self._listed = self._process.frames(self._current), 0, 0
            self._reason = str(body.get("reason") or "")
            self._is_news = bool(self._frames)
        elif name == "continued" and (body.get("allThreadsContinued") or body.get("threadId") == self._current):
            self._frames, self._is_news = [], False

    def _show_news(self) -> bool:
        """Show where the process has stopped, unless it was shown before; whether it had to be shown."""
        is_news, self._is_news = self._is_news, False
        if is_news:
            self._show_stop()
        return is_news

    def _show_stop(self) -> None:
        is_error = self._reason == "exception"
        if is_error and (error := self._process.error(self._current)):
            self._say(error)
        if self._reason == "breakpoint" and (failed := self._breakpoints.failed(self._frames[0])):
            self._say(f"*** {failed}")
        self._show_frame()

    def _tell_others(self) -> None:
        for other in self._others():
            self._note(f"also paused: {other} (np goes there)")

    def _run_on(self, command: str) -> None:
        self._resume(command)
        self._wait()

    def _resume(self, command: str) -> None:
        """Let it run. Where no answer comes it may run all the same."""
        frames, self._frames = self._frames, []
        try:
            self._process.resume(command, self._current)
        except (Busy, Refused):
            self._frames = frames
            raise

    # -- commands ----------------------------------------------------------------------------------------------

    def _continue(self, _argument: str) -> None:
        if self._frames:
            self._resume("continue")
            self._note("running; Ctrl-C stops it again")
        self._wait()

    def _next(self, _argument: str) -> None:
        self._run_on("next")

    def _step(self, _argument: str) -> None:
        self._run_on("stepIn")

    def _return(self, _argument: str) -> None:
        self._run_on("stepOut")

    def _next_paused(self, _argument: str) -> None:
        self._leave(End.NEXT, ask=False)

    def _quit(self, _argument: str) -> None:
        self._leave(End.LEFT, ask=bool(self._frames))

    def _leave(self, end: End, *, ask: bool) -> None:
        fails = self._frames and self._reason == "exception"
        goes_on = "the task fails, as it would have" if fails else "the task goes on without a debugger"
        try:
            leaves = not ask or self._confirm(f"Leave? {goes_on.capitalize()}.")
        except (EOFError, KeyboardInterrupt):
            leaves = False
        if leaves:
            self._end, self._goes_on = end, goes_on

    def _where(self, _argument: str) -> None:
        lines = self._process.lines(self._frames)
        for place in reversed(range(len(self._frames))):
            self._say_frame(place, lines[place])

    def _up(self, argument: str) -> None:
        self._go(self._at + _frames_in(argument), "Oldest frame")

    def _down(self, argument: str) -> None:
        self._go(self._at - _frames_in(argument), "Newest frame")

    def _go(self, wanted: int, last: str) -> None:
        place = min(max(wanted, 0), len(self._frames) - 1)
        if place == self._at:
            raise Refused(last)
        self._at, self._listed = place, 0
        self._show_frame()

    def _list(self, argument: str) -> None:
        first, last = commands.lines(argument, self._frames[self._at].line, self._listed)
        self._show_source(first, last)

    def _longlist(self, _argument: str) -> None:
        line = self._frames[self._at].line
        self._show_source(max(1, line - 30), line + 30)

    def _show_source(self, first: int, last: int) -> None:
        current, source = self._frames[self._at], self._source()
        if first > len(source):
            raise Refused("[EOF]" if source else f"the source of {current.file} is not to be had")
        for number in range(first, min(last, len(source)) + 1):
            mark = "B" if self._breakpoints.is_at(current.file, number) else " "
            arrow = "->" if number == current.line else ""
            self._say(f"{number:3} {mark}{arrow}\t{source[number - 1].rstrip()}")
        self._listed = min(last, len(source))

    def _value(self, argument: str) -> None:
        code = argument.removeprefix("!").strip()
        if not code:
            raise Refused("!CODE")
        if value := self._process.evaluate(self._frames[self._at], code):
            self._say(value)

    def _print(self, argument: str) -> None:
        self._say_text("repr", argument)

    def _pretty(self, argument: str) -> None:
        self._say_text("__import__('pprint').pformat", argument)

    def _say_text(self, function: str, argument: str) -> None:
        if not argument:
            raise Refused("p EXPRESSION")
        self._say(self._process.shown(self._frames[self._at], function, argument))

    def _locals(self, _argument: str) -> None:
        for name, value in self._process.locals(self._frames[self._at]):
            cut = value if len(value) <= _VALUE_CHARACTERS else f"{value[:_VALUE_CHARACTERS]} ..."
            self._say(f"{name} = {cut}")

    def _break(self, argument: str) -> None:
        text = self._breakpoints.add(argument, self._frames[self._at]) if argument else self._breakpoints.listed()
        self._say(text)

    def _clear(self, argument: str) -> None:
        self._say(self._breakpoints.clear(argument))

    def _threads(self, _argument: str) -> None:
        for number, each in enumerate(self._process.threads(), 1):
            self._say(f"{'*' if each.id == self._current else ' '} {number} {each.name}")

    def _thread(self, argument: str) -> None:
        threads = self._process.threads()
        usage = "thread N, with a number that `threads` shows"
        place = commands.number(argument, usage)
        if not 1 <= place <= len(threads):
            raise Refused(usage)
        chosen = threads[place - 1].id
        frames = self._process.frames(chosen)
        if not frames:
            raise Refused("this thread runs no Python now")
        self._current, self._frames, self._at, self._listed = chosen, frames, 0, 0
        self._show_frame()

    def _help(self, _argument: str) -> None:
        self._say(commands.HELP)

    # -- showing -----------------------------------------------------------------------------------------------

    def _show_frame(self) -> None:
        self._say_frame(self._at, self._process.lines([self._frames[self._at]])[0])

    def _say_frame(self, place: int, line: str) -> None:
        frame = self._frames[place]
        self._say(f"{'>' if place == self._at else ' '} {self._shown(frame.file)}({frame.line}){frame.function}()")
        if line:
            self._say(f"-> {line}")

    def _shown(self, file: str) -> str:
        """As in the client's folder, where it is of the job's."""
        cwd = self._stop.cwd.rstrip("/")
        if cwd and file.startswith(f"{cwd}/"):
            return file[len(cwd) + 1 :]
        # what Ray has pickled names the folder of the node where it was defined, which may be elsewhere on that node
        folder = cwd.rpartition("/")[2]
        return file.partition(f"/{folder}/")[2] or file if folder.startswith(_PACKAGE) else file

    def _source(self) -> Sequence[str]:
        """What the process runs; the client's own file only where that cannot be had, as it may differ."""
        frame = self._frames[self._at]
        try:
            runs = self._process.source(frame)
        except NoAnswer as error:
            self._note(error.message)
            runs = ()
        mine = self._mine(frame.file)
        if runs and mine and [*mine] != [*runs] and frame.file not in self._differs:
            self._differs.add(frame.file)
            self._note(f"{self._shown(frame.file)} is another here than there; this is what runs")
        return runs or mine

    def _mine(self, file: str) -> list[str]:
        name = self._shown(file)
        if self._folder is None or name == file or ".." in Path(name).parts:
            return []
        try:
            return (self._folder / name).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            return []


def _frames_in(argument: str) -> int:
    return max(1, commands.number(argument or "1", f"{argument[:20]!r} is not a number of frames"))
