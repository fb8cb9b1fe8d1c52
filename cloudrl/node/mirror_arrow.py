"""A mirror in Google Cloud Storage, by a child with pyarrow: see `cloudrl.node.arrow_worker`.

What was written is read again and compared by its CRC-32. A child of its own has each call that runs beside others; of
those that have done their work one waits for the next call.
"""

from __future__ import annotations

import contextlib
import io
import json
import socket
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Iterable, Iterator, List, Optional, cast

from cloudrl.child_process import Child
from cloudrl.errors import InputError
from cloudrl.node.mirror_folder import Pace

_SILENT_S = 300.0
"""The libraries try again for a minute by themselves."""
_PIECE_BYTES, _SUMMED_BYTES = 8 << 20, 32 << 20
_GRACE_S = 1.0


class ArrowStore:
    """A folder of a bucket as a store of files by their keys; see `FolderStore`.

    Args:
        start: starts the child, given the descriptor of the socket that it inherits.
    """

    def __init__(self, start: Callable[[int], Child], *, silent_s: float = _SILENT_S) -> None:
        self._start, self._silent_s = start, silent_s
        self._idle: List[_Calls] = []

    def begin(self) -> None:
        """A bucket is made by its owner: nothing is to be done."""

    def put(self, key: str, content: bytes) -> None:
        """Write a small file. Raises: OSError: it cannot be written."""
        with self._calls() as calls:
            calls.write(key, io.BytesIO(content), len(content))

    def get(self, key: str, limit_bytes: int) -> Optional[bytes]:
        """A small file; None if absent. Raises: OSError: it cannot be read, or is larger."""
        with self._calls() as calls:
            calls.ask("forget", key)  # a child that has it open would read what was there before
            try:
                content = calls.read(key, 0, limit_bytes + 1)
            except FileNotFoundError:
                return None
        if len(content) > limit_bytes:
            raise OSError(f"{key} is larger than {limit_bytes} bytes")
        return content

    def names(self, prefix: str) -> Dict[str, int]:
        """Key -> bytes of the files in a folder. Raises: OSError: it cannot be listed."""
        with self._calls() as calls:
            listed: Dict[str, int] = calls.ask("names", prefix)
        return {prefix + name: size for name, size in listed.items()}

    def remove(self, keys: Iterable[str]) -> None:
        """Remove files. Raises: OSError: one cannot be removed."""
        with self._calls() as calls:
            for key in keys:
                calls.ask("remove", key)

    def open(self, key: str) -> BinaryIO:
        """Open a file for reading. Raises: OSError: it cannot be read."""
        with self._calls() as calls:
            size = calls.ask("size", key)
        if size is None:
            raise FileNotFoundError(f"the mirror has no {key}")
        return cast("BinaryIO", io.BufferedReader(_Reader(self, key, size), _PIECE_BYTES))

    def read(self, key: str, offset: int, count: int) -> bytes:
        """Bytes of a file, fewer at its end. Raises: OSError: they cannot be read."""
        with self._calls() as calls:
            return calls.read(key, offset, count)

    def upload(self, key: str, source: BinaryIO, size_bytes: int, crc32: int, pace: Pace) -> None:
        """Have a file there, whole and compared. Raises: OSError: it is not there."""
        with self._calls() as calls:
            if _is_there(calls, key, size_bytes, crc32, pace):
                return
            calls.write(key, source, size_bytes, pace)
            if not _is_there(calls, key, size_bytes, crc32, pace):
                raise OSError(f"{key} is not in the mirror as it was sent")

    def warning(self, of_node: Iterable[Path]) -> str:
        """A bucket does not go with a machine."""
        del of_node
        return ""

    @contextlib.contextmanager
    def _calls(self) -> Iterator[_Calls]:
        """A child for some calls; it is ended if one of them fails: what it has left of a file never appears."""
        try:
            calls = self._idle.pop()
        except IndexError:
            calls = _Calls(self._start, self._silent_s)
        try:
            yield calls
        except BaseException:
            calls.close()
            raise
        if self._idle:
            calls.close()
        else:
            self._idle.append(calls)

    def close(self) -> None:
        """End the child that waits."""
        while self._idle:
            self._idle.pop().close()


def _is_there(calls: _Calls, key: str, size_bytes: int, crc32: int, pace: Pace) -> bool:
    if calls.ask("size", key) != size_bytes:
        return False
    crc = 0
    for offset in range(0, size_bytes, _SUMMED_BYTES):
        count = min(_SUMMED_BYTES, size_bytes - offset)
        crc = calls.ask("crc32", key, offset=offset, count=count, start=crc)
        pace(0)
    return crc == crc32


class _Calls:
    """Calls to one child, one after the other.

    Raises:
        OSError: it cannot be started, or does not answer.
        InputError: its Python has no pyarrow for this storage.
    """

    def __init__(self, start: Callable[[int], Child], silent_s: float) -> None:
        self._connection, theirs = socket.socketpair()
        self._connection.settimeout(silent_s)
        with theirs:
            self._child = start(theirs.fileno())
        self._stream = self._connection.makefile("rb")
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def ask(self, do: str, key: str, **values: int) -> Any:
        """The answer. Raises: OSError: the child has failed; FileNotFoundError: the file is absent."""
        self._send(json.dumps({"do": do, "key": key, **values}).encode() + b"\n")
        return self._answer()

    def read(self, key: str, offset: int, count: int) -> bytes:
        """Bytes of a file, fewer at its end. Raises: as `ask`."""
        wanted = self.ask("read", key, offset=offset, count=count)
        content = self._stream.read(wanted)
        if len(content) != wanted:
            raise OSError("the child for the mirror has ended")
        return content

    def write(self, key: str, source: BinaryIO, size_bytes: int, pace: Pace = lambda _: None) -> None:
        """Have a file. Raises: as `ask`, or the source is shorter."""
        self._send(json.dumps({"do": "write", "key": key, "count": size_bytes}).encode() + b"\n")
        left = size_bytes
        while left:
            piece = source.read(min(_PIECE_BYTES, left))
            if not piece:
                raise OSError(f"{key} has changed while it was copied")
            self._send(piece)
            pace(len(piece))
            left -= len(piece)
        self._answer()

    def _send(self, content: bytes) -> None:
        try:
            self._connection.sendall(content)
        except (BrokenPipeError, ConnectionResetError):
            self._answer()  # it has said why, and has ended
            raise

    def _answer(self) -> Any:
        line = self._stream.readline()
        if not line:
            raise OSError("the child for the mirror has ended")
        value = json.loads(line)
        if "answer" in value:
            return value["answer"]
        if "missing" in value:
            raise FileNotFoundError(value["missing"])
        if "no_pyarrow" in value:
            raise InputError(
                f"the node's Python has no pyarrow for this storage: {value['no_pyarrow']}",
                hint="verl's images have it. For another image: --setup \"pip install 'pyarrow>=19'\"",
            )
        raise OSError(value["error"])

    def close(self) -> None:
        """End the child on the spot."""
        self._stream.close()
        self._connection.close()
        self._child.end(_GRACE_S)


class _Reader(io.RawIOBase):
    """A file from any place on."""

    def __init__(self, store: ArrowStore, key: str, size_bytes: int) -> None:
        super().__init__()
        self._store, self._key, self._size, self._at = store, key, size_bytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), self._size - self._at)
        if count <= 0:
            return 0
        content = self._store.read(self._key, self._at, count)
        if not content:
            raise OSError(f"{self._key} is shorter than its {self._size} bytes")
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)
