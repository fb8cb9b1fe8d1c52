"""The breakpoints of a session, by the names that a person types."""

from __future__ import annotations

import re
from dataclasses import replace

from cloudrl.debug.dap import Refused
from cloudrl.debug.process import Breakpoint, Frame, Process

_PLACE = re.compile(r"(?:(?P<file>[^,]+):)?(?P<line>\d{1,9})\s*(?:,\s*(?P<condition>.+))?", re.DOTALL)


class Breakpoints:
    """Those that were set; the debugger forgets them at the end of the session.

    Args:
        process: where they are.
        folder: of the process, for relative names.
    """

    def __init__(self, process: Process, folder: str) -> None:
        self._process, self._folder = process, folder
        self._set: list[Breakpoint] = []
        self._numbers = 0

    def is_at(self, file: str, line: int) -> bool:
        """Whether there is one."""
        return any((point.file, point.line) == (file, line) for point in self._set)

    def listed(self) -> str:
        """All of them, for a person."""
        rows = [f"{point.number}  {_describe(point)}" for point in self._set]
        return "\n".join(rows) or "no breakpoints; set one: b FILE:LINE"

    def add(self, place: str, frame: Frame) -> str:
        """Set one at `FILE:LINE` or, in the file of a frame, `LINE`, with `, CONDITION` if need be; what to say.

        Raises:
            Refused: no such place, or several of them.
        """
        match = _PLACE.fullmatch(place)
        if match is None:
            raise Refused("b FILE:LINE, b LINE, or b FILE:LINE, CONDITION")
        file = frame.file if match["file"] is None else self._find(match["file"].strip(), frame)
        line, condition = int(match["line"]), (match["condition"] or "").strip()
        self._check_line(frame, file, line)
        if condition:
            self._process.compiles(frame, condition)
        wanted = [*self._of(file), Breakpoint(self._numbers + 1, file, line, condition)]
        line = self._process.set_breakpoints(file, wanted)[-1]
        self._numbers += 1
        added = replace(wanted[-1], line=line)
        self._set.append(added)
        return f"Breakpoint {added.number} at {_describe(added)}"

    def failed(self, frame: Frame) -> str:
        """Why the condition of a breakpoint at which a frame stands cannot be said, "" where it can."""
        for point in self._set:
            if point.condition and (point.file, point.line) == (frame.file, frame.line):
                try:
                    self._process.shown(frame, "(lambda value: str(bool(value)))", point.condition)
                except Refused as error:
                    return f"the condition of breakpoint {point.number} fails: {error.message}"
        return ""

    def _check_line(self, frame: Frame, file: str, line: int) -> None:
        """As pdb does; debugpy takes any line."""
        source = self._process.source(frame, file)
        if source and not 1 <= line <= len(source):
            raise Refused(f"{file} has lines 1 to {len(source)}")
        if source and (not (text := source[line - 1].strip()) or text.startswith("#")):
            raise Refused(f"{file}:{line}: blank or comment")

    def clear(self, number: str) -> str:
        """Remove one by its number; what to say.

        Raises:
            Refused: no breakpoint has this number.
        """
        chosen = next((point for point in self._set if str(point.number) == number), None)
        if chosen is None:
            raise Refused("cl N, with the number of a breakpoint that `b` lists")
        self._set.remove(chosen)
        self._process.set_breakpoints(chosen.file, self._of(chosen.file))
        return f"Deleted breakpoint {chosen.number} at {_describe(chosen)}"

    def _of(self, file: str) -> list[Breakpoint]:
        return [point for point in self._set if point.file == file]

    def _find(self, name: str, frame: Frame) -> str:
        name = name.removeprefix("./")
        if frame.file.endswith(f"/{name}"):
            return frame.file
        paths = self._process.find_file(frame, name, self._folder)
        if not paths:
            raise Refused(f"no file {name} in the job's folder, and no imported module ends so")
        if len(paths) > 1:
            raise Refused(f"{name} may be any of these:\n" + "\n".join(paths[:20]))
        return paths[0]


def _describe(each: Breakpoint) -> str:
    return f"{each.file}:{each.line}" + (f", if {each.condition}" if each.condition else "")
