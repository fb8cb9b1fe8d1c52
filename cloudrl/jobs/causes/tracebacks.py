"""Tracebacks: the innermost of several, without Ray's own frames, where it was raised, and its error."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cloudrl.protocol.outcome import FAILED
from cloudrl.verl.metrics import plain

_ERROR = re.compile(
    r"(?:ray\.exceptions\.RayTaskError\()?"
    r"([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|RunEnded))\)?(?:: \S.*)?$"
)
_START = "Traceback (most recent call last):"
_REMOTE = re.compile(
    r"\bray::(?P<name>[\w.<>-]+)\(\)[^(]{0,20}\(pid=(?P<pid>\d{1,10}), ip=(?P<ip>[\w.:]+)"
    r"(?:, actor_id=(?P<actor>[0-9a-f]{32}))?"
)
_CUT = re.compile(r"\s*(?P<actor>[0-9a-f]{32}), repr=")
"""The same after Ray has cut off the beginning of a message (Ray 2.60 keeps the last part of one)."""
_RAYS_FRAME = re.compile(r'\s*File "[^"]*(?:/ray/_private/|_raylet\.pyx|/ray/util/tracing/)[^"]*", line')
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
_LONGEST_LINE = 1000


@dataclass(frozen=True)
class Traceback:
    """The innermost traceback of a text.

    Attributes:
        lines: without Ray's frames, the error last.
        error: the line that it ends with; None where the text has no error.
        actor_id, pid, ip, task: where it was raised, as far as the text says.
    """

    lines: tuple[str, ...]
    error: str | None
    actor_id: str | None = None
    pid: int | None = None
    ip: str | None = None
    task: str | None = None


def error_of(line: str) -> str | None:
    """The error that a line of a traceback ends with, such as `ValueError: no`; None for other lines.

    A reason that one of our files gives for ending the run (`cloudrl/tools/`) stands alone.
    """
    text = plain(line[:_LONGEST_LINE]).strip()
    match = _ERROR.match(text)
    return text.partition(FAILED)[2] or (match[0] if match is not None else None)


def innermost(text: str) -> Traceback:
    """The traceback that all others in the text repeat.

    Ray puts the traceback of a task that failed into that of the one that waited for it, below a line with `ray::`.
    """
    lines = [plain(line[: 2 * _LONGEST_LINE])[:_LONGEST_LINE] for line in text.splitlines()]
    heads = [(at, match) for at, line in enumerate(lines) if (match := _REMOTE.search(line) or _CUT.match(line))]
    start, place = (heads[-1][0] + 1, heads[-1][1].groupdict()) if heads else (0, {})
    kept = tuple(line for line in _without_rays_frames(lines[start:]) if line.strip() and line != "User exception:")
    pid = place.get("pid")
    return Traceback(
        lines=kept,
        error=next(filter(None, map(error_of, reversed(kept))), None),
        actor_id=place.get("actor"),
        pid=int(pid) if pid else None,
        ip=place.get("ip"),
        task=place.get("name"),
    )


def last_failure(lines: Sequence[str]) -> tuple[str, ...]:
    """The last traceback of a log, with those that it is chained to; nothing where the log has none."""
    end = next((at for at in range(len(lines) - 1, -1, -1) if error_of(lines[at]) is not None), None)
    if end is None:
        return ()
    start = _start_above(lines, end)
    while start > 0 and any(words in line for line in lines[max(0, start - 3) : start] for words in _CHAINED):
        start = _start_above(lines, start)
    return tuple(lines[start : end + 1])


def _start_above(lines: Sequence[str], end: int) -> int:
    """Where the traceback that ends at a line begins; the line itself where none does."""
    return next((at for at in range(end - 1, -1, -1) if plain(lines[at]).strip() == _START), end)


def _without_rays_frames(lines: Sequence[str]) -> Iterator[str]:
    """Without Ray's frames and the code below them, and without the marks under code, which Ray cuts."""
    is_rays = False
    for line in lines:
        if line.lstrip().startswith('File "'):
            is_rays = _RAYS_FRAME.match(line) is not None
        elif not line.startswith("    "):
            is_rays = False
        if not is_rays and (set(line.strip()) - set("^~") or not line.strip()):
            yield line
