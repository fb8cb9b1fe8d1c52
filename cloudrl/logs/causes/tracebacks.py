"""Tracebacks: where they are among a process's lines, the innermost of several, and the errors that they end with.

Each line is looked at once, from the first to the last, so that no text takes longer than its length: a log is cut
anywhere, and lines of other threads stand between those of a traceback.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import dropwhile

from cloudrl.logs.causes.printed import read_line
from cloudrl.logs.sent_files import by_own_names
from cloudrl.protocol.outcome import FAILED

_SUFFIXES = "Error|Exception|Interrupt|Exit|RunEnded"
_OTHER_SUFFIXES = (
    "Invalid|Timeout|Expired|Pool|NotFound|NoSuchKey|Conflict|Denied|Refused|Aborted|Failed|Failure|Unavailable|"
    "Exceeded|Exhausted|Unauthenticated|Redirects|Iteration|ExceptionGroup"
)
"""Of exceptions that are no `...Error`: pyarrow.lib.ArrowInvalid, requests.exceptions.ReadTimeout and their like."""
_ERROR = re.compile(
    rf"(?:ray\.exceptions\.RayTaskError\([\w.]+\)|(?:\w+\.)*Exception(?:Group)?|[A-Za-z_][\w.]*(?:{_SUFFIXES})"
    rf"|(?:[a-z_]\w*\.)+(?:[A-Z]\w*)?(?:{_OTHER_SUFFIXES})|[A-Z]\w+(?:{_OTHER_SUFFIXES}))(?:: \S.*)?$"
)
_ANY_ERROR = re.compile(r"(?!\w*Warning\b)(?:(?:\w+\.)+[A-Za-z_]\w*|[A-Z]\w*)(?:: \S.*)?$")
"""Whatever Python raises: only the place below the frames of a traceback tells it from other text."""
_ABORT = re.compile(r"terminate called after throwing an instance of '(?P<name>[^'\n]{1,200})'")
_WHAT = re.compile(r"\s*what\(\): {1,4}(\S.*)$")
"""An exception of C++ that nothing has caught (libstdc++'s terminate handler)."""
_START = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s*File "[^"\n]{1,1000}", line \d{1,9}(?:, in |$)')
_PLACE = re.compile(r'\s*File "(?P<path>[^"\n]{1,1000})", line (?P<line>\d{1,9})(?:, in (?P<name>\S{1,200}))?')
_END_OF_FRAME = re.compile(r'(?!\s*File ")[^"\n]{0,1000}", line \d{1,9}, in \S')
"""Of which the beginning is cut off."""
_RAYS_HEAD = "User exception:"
_REMOTE = re.compile(
    r"\bray::(?P<name>[^\s():]{1,200})\(\)[^(]{0,20}\(pid=(?P<pid>\d{1,10}), ip=(?P<ip>[\w.:]{1,45})"
    r"(?:, actor_id=(?P<actor>[0-9a-f]{32}))?"
)
_CUT = re.compile(r"\s*(?P<actor>[0-9a-f]{32}), repr=")
"""The same after Ray has cut off the beginning of a message (Ray 2.60 keeps the last part of one)."""
_RAYS_FRAME = re.compile(r'\s*File "[^"]*(?:/ray/_private/|_raylet\.pyx|/ray/util/tracing/)[^"]*", line')
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
_LAST_ERROR = "Last error:"
_MORE = re.compile(rf"nccl[A-Z]\w{{1,40}}: |{_LAST_ERROR}")
"""Lines of a message that are not indented (NCCL, as torch 2.13 quotes it: NCCLUtils.cpp)."""
_VALIDATION = re.compile(r"\d{1,4} validation errors? for \S")
_VALIDATED = " [type="
"""Begins pydantic's message, and ends what it says of the first value; the value's key has a line without indentation
(pydantic_core 2, ValidationError.__str__)."""
_OTHERS_FILES = re.compile(
    r"site-packages|dist-packages|/lib/python3|/(?:ray|verl|vllm|sglang|torch|transformers|datasets|megatron)/"
    r"|/ray/session_[^/]{1,80}/runtime_resources/pip|^<"
)
"""Parts of the paths of files that are not the user's."""
_LONGEST_LINE, _LONGEST_TEXT = 1000, 200_000
_MOST_QUOTED = 12
_MOST_LINES, _MOST_BELOW_COLON, _MOST_BELOW = 40, 3, 20
"""Of a message; of it below a colon, without indentation; and from an error to the words that chain it to the next."""


@dataclass(frozen=True)
class Traceback:
    """The innermost traceback of a text.

    Attributes:
        lines: without Ray's frames, the error last.
        error: the line that it ends with, and what explains it; None where the text has no error.
        actor_id, pid, ip, task: where it was raised, as far as the text says.
    """

    lines: tuple[str, ...]
    error: str | None
    actor_id: str | None = None
    pid: int | None = None
    ip: str | None = None
    task: str | None = None


@dataclass(frozen=True)
class Block:
    """A failure among the lines of a process: from the first of its chained tracebacks to the end of its message.

    Attributes:
        start: the first line.
        error_at: the line that names the error.
        end: behind the last one.
    """

    start: int
    error_at: int
    end: int


def blocks(lines: Sequence[str]) -> Iterator[Block]:
    """The failures among the lines of one process, in their order.

    Args:
        lines: without prefixes; the empty ones count as absent.
    """
    reader = _Reader()
    for at, line in enumerate(lines):
        yield from reader.take(at, line)
    yield from reader.close()


def explained(lines: Sequence[str], block: Block) -> str:
    """The error of a block on one line, with what explains it.

    That is the next line where it ends with a colon, the first value that pydantic refuses, NCCL's last error where
    torch quotes it, and where it is bare the place that has raised it.
    """
    text = lines[block.error_at].strip()
    error = _error_in(text[:_LONGEST_LINE]) or text
    more = [line.strip() for line in lines[block.error_at + 1 : block.end] if line.strip()]
    if more and _VALIDATION.search(error):
        last = next((at for at, line in enumerate(more) if _VALIDATED in line), 0)
        error = f"{error}: {' '.join(more[: last + 1]).partition(_VALIDATED)[0]}"
    elif error.endswith(":") and more:
        error = f"{error} {more[0]}"
    elif _LAST_ERROR in more[:-1]:
        error = f"{error}: {more[more.index(_LAST_ERROR) + 1]}"
    elif _WHAT.match(lines[block.error_at]) and (abort := _ABORT.match(lines[block.start])):
        error = f"{abort['name']}: {error}"
    elif ": " not in error and (raised := _raised_at(lines[block.start : block.error_at])):
        error = f"{error}: {raised}"
    return error[:_LONGEST_LINE]


def innermost(text: str) -> Traceback:
    """The traceback that all others in the text repeat.

    Ray puts the traceback of a task that failed into that of the one that waited for it, below a line with `ray::`.
    """
    lines = [read_line(line).text[:_LONGEST_LINE] for line in text[-_LONGEST_TEXT:].splitlines()]
    heads = [(at, match) for at, line in enumerate(lines) if (match := _REMOTE.search(line) or _CUT.match(line))]
    start, place = (heads[-1][0] + 1, heads[-1][1].groupdict()) if heads else (0, {})
    own_lines = tuple(
        line for line in _without_rays_frames(_from_a_whole_line(lines[start:])) if line.strip() and line != _RAYS_HEAD
    )
    failures, pid = list(blocks(own_lines)), place.get("pid")
    return Traceback(
        lines=own_lines,
        error=explained(own_lines, failures[-1]) if failures else None,
        actor_id=place.get("actor"),
        pid=int(pid) if pid else None,
        ip=place.get("ip"),
        task=place.get("name"),
    )


def _from_a_whole_line(lines: Sequence[str]) -> Sequence[str]:
    """Without the end of a frame that comes first, its code, and what Ray says above it: Ray has cut there."""
    at = next((at for at, line in enumerate(lines[:2]) if _END_OF_FRAME.match(line)), None)
    if at is None:
        return lines
    return [*dropwhile(lambda line: line[:1].isspace() and not _FRAME.match(line), lines[at + 1 :])]


def own_frame(lines: Sequence[str]) -> tuple[str, str]:
    """The innermost frame of a traceback in a file of the user's, and the code in its line as the traceback quotes it.

    Such as `./reward.py, line 5, in compute_score` and `return verify(answer, timeout=0)`. ("", "") where all frames
    are in packages. Python 3.13 quotes all lines of a call that has several. A `raise` is left out: the error says as
    much.
    """
    for at in range(len(lines) - 1, -1, -1):
        frame = _PLACE.match(lines[at][:_LONGEST_LINE])
        path = by_own_names(frame["path"]) if frame is not None else ""
        if frame is not None and not _OTHERS_FILES.search(path.removeprefix("./")):
            place = f"{path}, line {frame['line']}" + (f", in {frame['name']}" if frame["name"] else "")
            return place, _quoted(lines[at], lines[at + 1 : at + 1 + _MOST_QUOTED])
    return "", ""


def _quoted(frame: str, below: Sequence[str]) -> str:
    """The code below a frame, on one line: it is indented by two more."""
    indent = len(frame) - len(frame.lstrip()) + 2
    code = list[str]()
    for line in below:
        text = line[:_LONGEST_LINE].strip()
        if _FRAME.match(line) is not None or not text or len(line) - len(line.lstrip()) < indent:
            break
        if set(text) - set("^~ "):
            code.append(text)
    return "" if code and code[0].startswith("raise ") else " ".join(code)[:_LONGEST_LINE]


def without_code(lines: Sequence[str]) -> list[str]:
    """Without the lines of code that tracebacks quote: they say what may be raised, and not what was."""
    remaining, below_frame = list[str](), False
    for line in lines:
        is_frame = _FRAME.match(line) is not None
        below_frame = is_frame or (below_frame and line.startswith("    ") and _error_in(line.strip()) is None)
        if is_frame or not below_frame:
            remaining.append(line)
    return remaining


class _Kind(Enum):
    """What a line is to a traceback."""

    BLANK = auto()
    CHAIN = auto()
    HEADER = auto()
    NESTED = auto()
    FRAME = auto()
    ERROR = auto()
    INDENTED = auto()
    OTHER = auto()


def _error_in(text: str) -> str | None:
    """The error that a line of a traceback ends with, such as `ValueError: no`; None for other lines.

    A reason that one of our files gives for ending the run (`cloudrl/tools/`) stands alone.

    Args:
        text: the line without prefixes.
    """
    if FAILED in text:
        return text.partition(FAILED)[2] or None
    match = _ERROR.match(text) or _WHAT.match(text)
    return match[match.lastindex or 0] if match is not None else None


def _kind(line: str, *, below_frame: bool) -> _Kind:
    text = line[:_LONGEST_LINE].strip()
    for kind, has_form in _FORMS.items():
        if has_form(line, text):
            return kind
    if below_frame and _ANY_ERROR.match(line[:_LONGEST_LINE]):
        return _Kind.ERROR
    return _Kind.INDENTED if line[0].isspace() else _Kind.OTHER


_FORMS: Mapping[_Kind, Callable[[str, str], object]] = {
    _Kind.BLANK: lambda _, text: not text or text == '"""',  # in which multiprocessing puts the traceback of a child
    _Kind.CHAIN: lambda _, text: text.startswith(_CHAINED),
    _Kind.NESTED: lambda _, text: ("ray::" in text and _REMOTE.search(text)) or text.startswith(f"Original {_START}"),
    _Kind.HEADER: lambda _, text: text.endswith(_START) or _ABORT.match(text),
    _Kind.FRAME: lambda line, _: _FRAME.match(line),
    _Kind.ERROR: lambda _, text: _error_in(text) is not None,
}
"""What a line is by its own form, as it is and without its indentation; the first that fits."""


@dataclass
class _Open:
    """A block that is being read.

    Attributes:
        start: None before its first line.
        error_at: the line of its error so far; None before the first one.
        end: behind the last line of it.
        goes_on: whether another traceback belongs to it, which is chained to the last one or quoted by it.
        below_frame: whether the last line was a frame of a traceback, or the code of one.
        in_message: whether the next line may belong to the message of its error.
        below_colon: how many lines that are not indented may explain a line that ended with a colon.
    """

    start: int | None = None
    error_at: int | None = None
    end: int = 0
    goes_on: bool = False
    below_frame: bool = False
    in_message: bool = False
    below_colon: int = 0

    @property
    def is_complete(self) -> bool:
        return self.error_at is not None and not self.goes_on


class _Reader:
    """Reads the lines of a process one after the other."""

    def __init__(self) -> None:
        self._block = _Open()

    def take(self, at: int, line: str) -> Iterator[Block]:
        """The block that has ended before this line, if one has."""
        kind = _kind(line, below_frame=self._block.below_frame)
        if kind is _Kind.BLANK:
            self._block.in_message = False
        elif kind is _Kind.CHAIN:
            self._block.goes_on = self._block.error_at is not None
        elif self._is_message(at, line, kind):
            self._block.end = at + 1
        elif kind in (_Kind.HEADER, _Kind.FRAME, _Kind.NESTED):
            yield from self._traceback(at, kind)
        elif kind is _Kind.ERROR:
            yield from self._error(at, line)
        elif kind is _Kind.OTHER:
            yield from self._other(at)

    def close(self) -> Iterator[Block]:
        """The block that is being read, if it has an error."""
        done, self._block = self._block, _Open()
        if done.start is not None and done.error_at is not None:
            yield Block(done.start, done.error_at, done.end)

    def _traceback(self, at: int, kind: _Kind) -> Iterator[Block]:
        is_lost = kind is _Kind.HEADER and self._block.error_at is None  # the end of the one before
        if is_lost or (self._block.is_complete and kind is not _Kind.NESTED):
            yield from self.close()
        block = self._block
        block.start = at if block.start is None else block.start
        block.below_frame, block.in_message = kind is not _Kind.HEADER, False
        if kind is _Kind.NESTED:  # its own error, until the one that it quotes comes
            block.error_at, block.end, block.goes_on = at, at + 1, True

    def _other(self, at: int) -> Iterator[Block]:
        """Other text ends frames that have no error, and later the block: some messages have lines without a form."""
        block = self._block
        if block.error_at is None or block.goes_on or at - block.error_at > _MOST_BELOW:
            yield from self.close()
        block.in_message = False

    def _error(self, at: int, line: str) -> Iterator[Block]:
        if self._block.is_complete:
            yield from self.close()
        start = at if self._block.start is None else self._block.start
        goes_on = line.rstrip().endswith(":") or _VALIDATION.search(line[:_LONGEST_LINE])
        below_colon = _MOST_BELOW_COLON if goes_on else 0
        self._block = _Open(start, at, at + 1, in_message=True, below_colon=below_colon)

    def _is_message(self, at: int, line: str, kind: _Kind) -> bool:
        """Whether a line goes on with the message of the error above it."""
        block = self._block
        if not block.in_message or block.error_at is None or at != block.end:
            return False
        if at - block.error_at > _MOST_LINES:
            return False
        if kind is _Kind.INDENTED or _MORE.match(line):
            block.below_colon = int(line.startswith(_LAST_ERROR))
            return True
        if block.below_colon and (kind is _Kind.OTHER or (kind is _Kind.ERROR and at == block.error_at + 1)):
            block.below_colon -= 1
            return True
        return False


def _raised_at(lines: Sequence[str]) -> str:
    """What a bare error does not say: the assertion that does not hold, else the function that has raised it."""
    at = next((at for at in range(len(lines) - 1, -1, -1) if _FRAME.match(lines[at])), None)
    if at is None:
        return ""
    code = next((line.strip() for line in lines[at + 1 :] if line.startswith("    ")), "")
    function = lines[at].rpartition(", in ")[2]
    return code if code.startswith("assert ") else f"in {function}" if ", in " in lines[at] else ""


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
