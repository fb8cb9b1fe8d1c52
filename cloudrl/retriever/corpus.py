"""The passages: a jsonl file that is mapped, with the offset of each line in a file beside it.

A line is the `document` of an answer already: it is sent as it is, without parsing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import tempfile
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic_core import from_json

from cloudrl.errors import InputError
from cloudrl.foreign import parse_object

OnProgress = Callable[[int, int], object]
"""Called with the bytes that are done, and all of them."""

_HEAD_BYTES = 512
_PIECE_BYTES = 1 << 26


@dataclass(frozen=True)
class CorpusFile:
    """What identifies the content of a corpus: `sha256`; and, by size and time, the file that was read for it."""

    sha256: str
    passages: int
    size_bytes: int
    modified_ns: int


class Corpus:
    """Passages by their row.

    Args:
        path: a jsonl file, each line an object with `contents`.
        identity: what was found in it.
        offsets: where each line begins.
    """

    def __init__(self, path: Path, identity: CorpusFile, offsets: npt.NDArray[np.int64]) -> None:
        self.path, self.identity, self._offsets = path, identity, offsets
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets)

    def document(self, row: int) -> bytes:
        """One line, without its end."""
        start = int(self._offsets[row])
        end = self._map.find(b"\n", start)
        return self._map[start : end if end >= 0 else len(self._map)].rstrip()

    def contents(self, row: int) -> str:
        """The text of a passage."""
        text: str = json.loads(self.document(row))["contents"]
        return text


_FORM = 'A corpus has lines such as {"id": "0", "contents": "\\"Title\\"\\ntext"}; cloudrl retriever build makes them'


def offsets_path(path: Path) -> Path:
    """The file with the offsets of a corpus."""
    return path.with_name(f"{path.name}.offsets")


def open_corpus(path: Path, *, on_progress: OnProgress = lambda _done, _total: None) -> Corpus:
    """Map a corpus. The first time the whole file is read for its offsets and its identity, and each line is checked.

    They are written beside it, whole or not at all; where nothing can be written they are made anew at each start.

    Raises:
        InputError: it is missing, empty, compressed, or a line of it is not a passage.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise InputError(f"there is no corpus {path}: {error.strerror}") from error
    beside = offsets_path(path)
    with contextlib.suppress(OSError, ValueError, TypeError):
        with beside.open("rb") as file:
            identity = CorpusFile(**parse_object(file.read(_HEAD_BYTES)))
        offsets = np.memmap(beside, np.int64, "r", _HEAD_BYTES)
        if (identity.size_bytes, identity.modified_ns, identity.passages) == (
            stat.st_size,
            stat.st_mtime_ns,
            len(offsets),
        ):
            return Corpus(path, identity, offsets)
    identity, new_offsets = _read(path, stat, on_progress)
    with contextlib.suppress(OSError):
        _write(beside, identity, new_offsets)
    return Corpus(path, identity, new_offsets)


def check_line(line: bytes, where: str) -> None:
    """Refuse a line that is not a passage, strictly: answers contain it as it is.

    Raises:
        InputError: it is not JSON, or has no `contents`.
    """
    try:
        passage = from_json(line, allow_inf_nan=False)
    except ValueError as error:
        reason = str(error).replace(" at line 1 column", ", column")
        raise InputError(f"{where}: no JSON: {reason}", hint=_FORM) from error
    if not isinstance(passage, dict) or not isinstance(passage.get("contents"), str):
        raise InputError(f"{where}: no object with a text under `contents`", hint=_FORM)


def _read(path: Path, stat: os.stat_result, on_progress: OnProgress) -> tuple[CorpusFile, npt.NDArray[np.int64]]:
    digest, offsets, before, at = hashlib.sha256(), array("q"), 0, 0
    with path.open("rb") as file:
        if file.read(2) == b"\x1f\x8b":
            raise InputError(f"{path} is compressed", hint=f"gunzip {path}")
        file.seek(0)
        while piece := file.read(_PIECE_BYTES):
            piece += file.readline()  # whole lines
            digest.update(piece)
            lines = piece.removesuffix(b"\n").split(b"\n")
            for number, line in enumerate(lines, start=before + 1):
                if line.strip():
                    check_line(line, f"{path}, line {number}")
                    offsets.append(at)
                at += len(line) + 1
            before += len(lines)
            on_progress(min(at, stat.st_size), stat.st_size)
    if not offsets:
        raise InputError(f"{path} has no passages", hint=_FORM)
    return CorpusFile(digest.hexdigest(), len(offsets), stat.st_size, stat.st_mtime_ns), np.frombuffer(
        offsets, np.int64
    )


def _write(path: Path, identity: CorpusFile, offsets: npt.NDArray[np.int64]) -> None:
    number, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(json.dumps(asdict(identity)).encode().ljust(_HEAD_BYTES))
            offsets.tofile(file)
        Path(part).chmod(0o644)
        Path(part).replace(path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
