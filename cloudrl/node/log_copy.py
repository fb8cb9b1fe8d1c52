"""Copies the logs of one Ray session into the archive, as they grow: by offset, masked, compressed and bounded.

Ray moves a log when it rotates it (`monitor.log` becomes `monitor.log.1`) and when its worker has died (into `old/`),
so a file is known by its inode, and keeps the name under which it was seen first.
"""

from __future__ import annotations

import gzip
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Callable, Dict, Iterator, List, Mapping, Tuple

from cloudrl.node.masking import Masker
from cloudrl.protocol.usage_rows import FILE as USAGE
from cloudrl.saves.archive import AGENT, LOG, LOGS, PIECE_BYTES
from cloudrl.saves.below import Refused, open_below

_CHUNK_BYTES = 1 << 20
_START_BYTES = 64
"""By which a file is known again: one that was emptied and has grown beyond the old offset has another beginning."""
_DEPTH = 3
_LEFT_OUT = "runtime_env_agent.log"
"""Has the variables of every job in clear (Ray 2.60, _private/runtime_env/agent/runtime_env_agent.py)."""
_NO_LINE = b"[cloudrl: a line of more than 1 MiB was not kept]\n"


@dataclass(frozen=True)
class Bounds:
    """Of one session on one node.

    Attributes:
        pieces: of a log: the first and the newest ones stay.
        driver_pieces: of the log of a job's driver, which has the metrics of every step.
        total_bytes: compressed; beyond it the logs go to which nothing was added for longest, those of drivers last.
        pass_bytes: to be read at a time, so that a flood of output takes no more than its part of a CPU.
    """

    pieces: int = 8
    driver_pieces: int = 64
    total_bytes: int = 256 << 20
    pass_bytes: int = 32 << 20


@dataclass
class _Copy:
    """How far one file has been copied.

    Attributes:
        path: in the archive.
        start: its first bytes, as far as they were there.
        number, size: of the piece that is being written, and what stands in it uncompressed.
        pieces: number -> bytes on disk, in their order.
        turn: of the pass that has added to it last.
        in_long_line: whether the offset is within a line that is left out.
    """

    path: str
    start: bytes = b""
    offset: int = 0
    number: int = 0
    size: int = 0
    pieces: Dict[int, int] = field(default_factory=dict)
    turn: int = 0
    in_long_line: bool = False

    @property
    def is_driver_log(self) -> bool:
        return self.path.startswith(f"{LOGS}/job-driver-")


class LogCopy:
    """The logs of one session; `copy` is called again and again, by one thread at a time.

    Args:
        target: the session's folder in the archive, which is made with mode 0700, its files with 0600.
        roots: name of a folder in the archive -> where its logs are.
    """

    def __init__(self, target: Path, roots: Mapping[str, Path], bounds: Bounds = Bounds()) -> None:
        self._target, self._roots, self._bounds = target, roots, bounds
        self._copies: Dict[Tuple[int, int], _Copy] = {}
        self._names: Dict[str, int] = {}
        self._turn = 0
        self._stopped_at = ("", "")

    def copy(self, masker: Callable[[], Masker], *, is_last: bool = False) -> None:
        """Add what is new, a line once it is complete.

        Args:
            masker: of the secrets that are known by now; asked after each read, as no process prints one before.
            is_last: nothing is going to be added to any line.

        Raises:
            OSError: the archive cannot be written; the next call goes on where this one broke off.
        """
        self._turn += 1
        left = self._bounds.pass_bytes
        for root, path in self._in_turn():
            if left <= 0:
                break
            try:
                with _opened(self._roots[root], path) as file:
                    left -= self._copy_file(file.fileno(), f"{root}/{path}", masker, left, is_last=is_last)
            except Refused:  # moved just now, no file, or it cannot be read
                continue
            self._stopped_at = root, path
        self._keep_total()

    def _in_turn(self) -> List[Tuple[str, str]]:
        """All logs, beginning behind the one at which the last pass stopped: a flood holds up no other."""
        logs = sorted(self._logs())
        return [log for log in logs if log > self._stopped_at] + [log for log in logs if log <= self._stopped_at]

    def _logs(self) -> Iterator[Tuple[str, str]]:
        for root, folder in self._roots.items():
            for path in _regular_files(folder):
                is_taken = LOG.fullmatch(path) or (root == AGENT and path == USAGE)
                if is_taken and not path.rpartition("/")[2].startswith(_LEFT_OUT):
                    yield root, path

    def _copy_file(self, descriptor: int, path: str, masker: Callable[[], Masker], left: int, *, is_last: bool) -> int:
        """Returns how many bytes were read."""
        info = os.fstat(descriptor)
        copy = self._find((info.st_dev, info.st_ino), path, info.st_size, _read(descriptor, _START_BYTES, 0))
        began = copy.offset
        while copy.offset < info.st_size and copy.offset - began < left:
            chunk = _read(descriptor, _CHUNK_BYTES, copy.offset)
            at_end = is_last and copy.offset + len(chunk) >= info.st_size
            taken, lines = _whole_lines(chunk, at_end=at_end, in_long_line=copy.in_long_line)
            if not taken:
                break
            if lines:
                self._add(copy, masker().mask(lines))
            copy.in_long_line = not chunk[:taken].endswith((b"\n", b"\r"))
            copy.offset += taken
        return copy.offset - began

    def _find(self, inode: Tuple[int, int], path: str, size: int, start: bytes) -> _Copy:
        copy = self._copies.get(inode)
        if copy is None or size < copy.offset or not start.startswith(copy.start):
            copy = self._copies[inode] = _Copy(self._free_name(path))
        copy.start = start
        return copy

    def _free_name(self, path: str) -> str:
        """The second file of a name gets `~2`."""
        path = path.replace(f"{LOGS}/old/", f"{LOGS}/")
        self._names[path] = count = self._names.get(path, 0) + 1
        return path if count == 1 else f"{path}~{count}"

    def _add(self, copy: _Copy, text: bytes) -> None:
        if copy.size and copy.size + len(text) > PIECE_BYTES:
            copy.number, copy.size = copy.number + 1, 0
        copy.pieces[copy.number] = append_private(self._file(copy, copy.number), compressed(text))
        copy.size += len(text)
        copy.turn = self._turn
        limit = self._bounds.driver_pieces if copy.is_driver_log else self._bounds.pieces
        if len(copy.pieces) > limit:
            self._give_up(copy, [list(copy.pieces)[1]])

    def _keep_total(self) -> None:
        copies = [copy for copy in self._copies.values() if copy.pieces]
        excess = sum(sum(copy.pieces.values()) for copy in copies) - self._bounds.total_bytes
        for copy in sorted(copies, key=lambda candidate: (candidate.is_driver_log, candidate.turn)):
            if excess <= 0:
                return
            excess -= sum(copy.pieces.values())
            self._give_up(copy, list(copy.pieces))
            copy.number, copy.size = copy.number + 1, 0

    def _give_up(self, copy: _Copy, numbers: List[int]) -> None:
        for number in numbers:
            del copy.pieces[number]
            with suppress(FileNotFoundError):
                self._file(copy, number).unlink()

    def _file(self, copy: _Copy, number: int) -> Path:
        return self._target / f"{copy.path}.{number}.gz"


def _opened(root: Path, path: str) -> BinaryIO:
    """A log; `Refused` whatever keeps it from being opened."""
    try:
        return open_below(root, path)
    except OSError as error:
        raise Refused(path) from error


def _read(descriptor: int, count: int, offset: int) -> bytes:
    try:
        return os.pread(descriptor, count, offset)
    except OSError as error:  # not one of the archive, and no matter of other logs
        raise Refused(str(error)) from error


def _whole_lines(chunk: bytes, *, at_end: bool, in_long_line: bool) -> Tuple[int, bytes]:
    """How much of a chunk is done with, and what of that is kept: a secret is never cut in two."""
    last = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
    if not last and len(chunk) == _CHUNK_BYTES:
        return len(chunk), b"" if in_long_line else _NO_LINE
    taken = len(chunk) if at_end else last
    return taken, chunk[:taken] if not in_long_line else b"".join(chunk[:taken].splitlines(keepends=True)[1:])


def compressed(text: bytes) -> bytes:
    """One member of a piece; its header says when."""
    return gzip.compress(text, 6, mtime=time.time())


def _regular_files(root: Path, below: str = "", depth: int = _DEPTH) -> Iterator[str]:
    """Paths below a folder, sorted; no link is followed, and none is listed."""
    try:
        entries = sorted(os.scandir(root / below), key=lambda entry: entry.name)
    except OSError:  # not made yet, or gone
        return
    for entry in entries:
        path = f"{below}{entry.name}"
        if entry.is_file(follow_symlinks=False):
            yield path
        elif depth > 1 and entry.is_dir(follow_symlinks=False):
            yield from _regular_files(root, f"{path}/", depth - 1)


def _make_private(folder: Path) -> None:
    """With those above it that are missing: `parents` of `Path.mkdir` would give them the usual mode."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        _make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def append_private(path: Path, content: bytes) -> int:
    """Add to a file that its owner alone can read, all or nothing; returns its size.

    Raises:
        OSError: it cannot be written, or is a link.
    """
    _make_private(path.parent)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    try:
        before = os.fstat(descriptor).st_size
        written = 0
        try:
            while written < len(content):
                written += os.write(descriptor, content[written:])
        except OSError:  # what was written of a member would end the reading of all after it
            os.ftruncate(descriptor, before)
            raise
        return before + written
    finally:
        os.close(descriptor)
