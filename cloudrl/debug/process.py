"""A process that debugpy has stopped: its threads, frames, variables and sources."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cloudrl.debug.dap import TIMEOUT_S, DapClient, NoAnswer, Refused

_FRAMES, _VARIABLES = 500, 500
_SOURCE_CHARACTERS = 4_000_000
_SOURCE = "''.join(__import__('linecache').getlines({file!r}))[:{limit}]"
_SHOWN_CHARACTERS = 1_000_000
_KEEP = "__import__('sys').__dict__.__setitem__('cloudrl_shown', {text})"
_KEPT = "__import__('sys').__dict__.pop('cloudrl_shown')"
"""In two steps, as pydevd gives errors in the one context and whole texts in the other."""
_GUARD = """
from _pydevd_bundle import pydevd_vars

def guarded(run):
    def call(*arguments):
        try:
            return run(*arguments)
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:
            kind = type(type(error).__name__, (Exception,), {"__module__": "builtins"})
            raise kind(*error.args) from None
    call.is_guarded = True
    return call

if not hasattr(getattr(pydevd_vars, "eval", None), "is_guarded"):
    pydevd_vars.eval, pydevd_vars.Exec = guarded(eval), guarded(pydevd_vars.Exec)
"""
"""Without it pydevd never answers what ends in SystemExit (debugpy 1.8.22: `except (Exception, KeyboardInterrupt)`)."""
_FIND = (
    "(lambda os, sys, name, folder: [os.path.join(folder, name)] if os.path.isfile(os.path.join(folder, name)) else "
    "sorted({{m.__file__ for m in list(sys.modules.values()) "
    "if (getattr(m, '__file__', None) or '').endswith('/' + name)}}))"
    "(__import__('os'), __import__('sys'), {name!r}, {folder!r})"
)


class Busy(NoAnswer):
    """What was asked before is still being done; nothing was asked now."""


@dataclass(frozen=True)
class Frame:
    """A frame of a stack; `file` is its path on the node. Nothing in it steers a terminal's lines."""

    id: int
    function: str
    file: str
    line: int


@dataclass(frozen=True)
class Thread:
    """A thread by the debugger's number."""

    id: int
    name: str


@dataclass(frozen=True)
class Breakpoint:
    """Where the process is to stop; `condition` is an expression, "" for always."""

    number: int
    file: str
    line: int
    condition: str = ""


class Process:
    """What a debugger says of a process. Values are what `repr` makes of them there, cut off where they are long.

    Every method raises `ConnectionLost` when the other end is gone, and `NoAnswer` when it takes too long.

    Args:
        client: which is attached.
    """

    def __init__(self, client: DapClient) -> None:
        self._client = client
        self._sources: dict[str, tuple[str, ...]] = {}
        self._outstanding: tuple[int, str] | None = None
        self._is_guarded = False

    def threads(self) -> list[Thread]:
        """All of them."""
        threads = self._client.request("threads").get("threads")
        return [Thread(_number(row.get("id")), _line(row.get("name"))) for row in _rows(threads)]

    def frames(self, thread: int) -> list[Frame]:
        """The stack of a thread that stands, the innermost frame first."""
        answer = self._client.request("stackTrace", {"threadId": thread, "startFrame": 0, "levels": _FRAMES})
        return [
            Frame(_number(row.get("id")), _function(row.get("name")), _line(_path(row)), _number(row.get("line")))
            for row in _rows(answer.get("stackFrames"))
        ]

    def error(self, thread: int) -> str:
        """What was raised, such as `ValueError: no`; "" where nothing was."""
        try:
            info = self._client.request("exceptionInfo", {"threadId": thread})
        except Refused:
            return ""
        # pydevd adds a remark of its own to the name
        name, _, _ = str(info.get("exceptionId") or "").partition("(note:")
        return f"{name.strip()}: {info.get('description') or ''}".strip(": ")

    def locals(self, frame: Frame) -> list[tuple[str, str]]:
        """Names and values of the variables of a frame."""
        scopes = _rows(self._client.request("scopes", {"frameId": frame.id}).get("scopes"))
        if not scopes:
            return []
        reference = {"variablesReference": scopes[0].get("variablesReference"), "count": _VARIABLES}
        rows = _rows(self._client.request("variables", reference).get("variables"))
        named = [(_line(row.get("name")), str(row.get("value"))) for row in rows]
        return [(name, value) for name, value in named if not name.endswith(" variables")][:_VARIABLES]

    def evaluate(self, frame: Frame, code: str) -> str:
        """What an expression gives, "" for None and for statements, which are run. Waits until Ctrl-C.

        Raises:
            Refused: it raises; the message is the end of the traceback.
        """
        self._guard(frame)
        return str(self._evaluate(frame, code, "repl", None))

    def shown(self, frame: Frame, function: str, expression: str) -> str:
        """The text that a function such as `repr` makes of an expression, one of several values included.

        Raises:
            Refused: it raises; the message is the end of the traceback.
        """
        self._guard(frame)
        self._evaluate(frame, _KEEP.format(text=f"{function}((\n{expression}\n))[:{_SHOWN_CHARACTERS}]"), "repl", None)
        return self.text(frame, _KEPT)

    def compiles(self, frame: Frame, expression: str) -> None:
        """See whether an expression is one for the Python of the process.

        Raises:
            Refused: the text is not a valid expression; the message says why.
        """
        self._evaluate(frame, f"bool(compile({expression!r}, 'condition', 'eval'))", "repl", TIMEOUT_S)

    def text(self, frame: Frame, code: str) -> str:
        """The string that an expression gives, whole.

        Raises:
            Refused: it raises, or gives no string.
        """
        value = self._whole(frame, code)
        if not isinstance(value, str):
            raise Refused("no text")
        return value

    def source(self, frame: Frame, file: str = "") -> tuple[str, ...]:
        """The lines of a frame's file, or of another, as the process itself reads it; empty if there is no such file.

        Raises:
            NoAnswer: it does not say so now.
        """
        file = file or frame.file
        if file not in self._sources:
            try:
                text = self.text(frame, _SOURCE.format(file=file, limit=_SOURCE_CHARACTERS))
            except Refused:
                text = ""
            self._sources[file] = tuple(text.splitlines())
        return self._sources[file]

    def lines(self, frames: Sequence[Frame]) -> list[str]:
        """The line at which each frame stands, without its indent; "" if its file is not available."""
        if not frames:
            return []
        places = [(frame.file, frame.line) for frame in frames]
        code = f"[__import__('linecache').getline(f, n).strip()[:500] for f, n in {places!r}]"
        try:
            listed = self._whole(frames[0], code)
        except (Refused, NoAnswer):
            listed = []
        files = [str(each) for each in listed] if isinstance(listed, list) else []
        return files + [""] * (len(frames) - len(files))

    def find_file(self, frame: Frame, name: str, folder: str) -> list[str]:
        """Paths on the node that a name may mean: below the folder, or else of imported modules that end so."""
        try:
            paths = self._whole(frame, _FIND.format(name=name, folder=folder))
        except Refused:
            return []
        return [str(path) for path in paths] if isinstance(paths, list) else []

    def set_breakpoints(self, file: str, wanted: Sequence[Breakpoint]) -> list[int]:
        """Those of one file, in place of all from before; the line where each really is.

        Raises:
            Refused: the last one can never be reached; the others are set.
        """
        rows = [{"line": point.line, **({"condition": point.condition} if point.condition else {})} for point in wanted]
        answer = self._client.request("setBreakpoints", {"source": {"path": file}, "breakpoints": rows})
        places = _rows(answer.get("breakpoints"))
        if len(places) == len(wanted) and places and not places[-1].get("verified"):
            self._client.request("setBreakpoints", {"source": {"path": file}, "breakpoints": rows[:-1]})
            raise Refused(str(places[-1].get("message") or "there is no code at this line"))
        lines = [_number(place.get("line")) for place in places] + [0] * len(wanted)
        return [line or each.line for line, each in zip(lines, wanted, strict=False)]

    def resume(self, command: str, thread: int) -> None:
        """`continue`, `next`, `stepIn`, `stepOut` or `pause`; where it stops next is an event."""
        if command != "pause":
            self._check_free()
        self._client.request(command, {"threadId": thread})

    def _whole(self, frame: Frame, code: str) -> Any:
        """A value of strings, numbers and lists, not cut off (debugpy 1.8.22: context `clipboard`)."""
        answer = str(self._evaluate(frame, code, "clipboard", TIMEOUT_S))
        try:
            return ast.literal_eval(answer)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise Refused("the answer cannot be read") from None

    def _evaluate(self, frame: Frame, code: str, context: str, timeout_s: float | None) -> Any:
        self._check_free()
        number = self._client.send("evaluate", {"expression": code, "frameId": frame.id, "context": context})
        self._outstanding = number, code
        try:
            return self._client.answer(number, timeout_s).get("result", "")
        except Refused as error:
            raise Refused(_last_line(error.message)) from None

    def _check_free(self) -> None:
        """One thread does one thing after another."""
        if self._outstanding and self._client.is_outstanding(self._outstanding[0]):
            code = " ".join(self._outstanding[1].split())
            raise Busy(f"the task is still at work on {code[:100]}; q leaves it to that")
        self._outstanding = None

    def _guard(self, frame: Frame) -> None:
        if not self._is_guarded:
            with suppress(Refused):
                self._whole(frame, f"exec({_GUARD!r}, {{}})")
            self._is_guarded = True


def _rows(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _path(row: Mapping[str, Any]) -> str:
    source = row.get("source")
    return str(source.get("path") or source.get("name") or "?") if isinstance(source, dict) else "?"


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _line(value: Any) -> str:
    """A name, which stays on its line."""
    return " ".join(str(value).splitlines())


def _function(value: Any) -> str:
    """Without the remark that pydevd makes in a post-mortem."""
    return _line(value).removesuffix(" (Current frame)")


def _last_line(traceback: str) -> str:
    lines = [line.strip() for line in traceback.splitlines() if line.strip()]
    return lines[-1] if lines else "refused"
