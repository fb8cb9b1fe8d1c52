"""Files in Google Cloud Storage, by pyarrow: a child of the agent, whose crash would end a cluster.

It answers on a socket: a JSON line of the question, with the bytes of a file behind it, and a JSON line of the answer,
likewise. A write that fails ends the process on the spot: pyarrow's streams would otherwise be closed, and a part of a
file would appear under its name.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import zlib
from contextlib import suppress
from datetime import timedelta
from typing import Any, BinaryIO, Callable, Dict, Mapping, Optional, Sequence, Tuple, cast

from cloudrl.protocol.mirrors import MirrorUrl, parse_mirror

_PIECE_BYTES = 8 << 20
_RETRY_S = 60
EMULATOR = "STORAGE_EMULATOR_HOST"
"""Of Google's own libraries: the URL of a stand-in for GCS."""
_CLIENT_FAILED = 3
_QUERY = re.compile(r"\?[^\s'\"<>]+")


class Files:
    """A folder of a pyarrow file system.

    Args:
        filesystem: see `pyarrow.fs.FileSystem`.
        root: `BUCKET/PREFIX`.
    """

    def __init__(self, filesystem: Any, root: str) -> None:
        self.filesystem, self.root = filesystem, root
        self._reading: Tuple[str, Any] = ("", None)
        self._writing: Any = None
        """What is not closed yet; a stream that nothing refers to is closed, and its part of a file appears."""

    def path(self, key: str) -> str:
        """Of a file, or of the folder for ""."""
        return "/".join(part for part in (self.root, key.strip("/")) if part)

    def size(self, key: str) -> Optional[int]:
        """Bytes of a file; None if absent."""
        [info] = self.filesystem.get_file_info([self.path(key)])
        return int(info.size) if info.is_file else None

    def names(self, key: str) -> Dict[str, int]:
        """Name -> bytes of the files in a folder."""
        from pyarrow.fs import FileSelector

        listed = self.filesystem.get_file_info(FileSelector(self.path(key), allow_not_found=True))
        return {info.base_name: int(info.size) for info in listed if info.is_file}

    def remove(self, key: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            self.filesystem.delete_file(self.path(key))

    def read(self, key: str, offset: int, count: int) -> bytes:
        """Bytes of a file, fewer at its end. Raises: FileNotFoundError."""
        path, file = self._reading
        if path != key:
            file = self.filesystem.open_input_file(self.path(key))
            self._reading = key, file
        file.seek(offset)
        return bytes(file.read(count))

    def forget(self, key: str = "") -> None:
        """Open the file anew at the next `read`: an open one stays at the generation that it had in GCS."""
        del key
        self._reading = "", None

    def crc32(self, key: str, offset: int, count: int, start: int) -> int:
        """Of a part of a file, given that of what is before it."""
        end = offset + count
        for place in range(offset, end, _PIECE_BYTES):
            start = zlib.crc32(self.read(key, place, min(_PIECE_BYTES, end - place)), start)
        return start

    def write(self, key: str, source: BinaryIO, count: int) -> None:
        """Have a file with the next bytes of a source. It appears when it is whole."""
        self._writing = self.filesystem.open_output_stream(self.path(key), compression=None)
        while count:
            piece = source.read(min(_PIECE_BYTES, count))
            if not piece:
                os._exit(_CLIENT_FAILED)
            self._writing.write(piece)
            count -= len(piece)
        self._writing.close()


def open_files(url: MirrorUrl, environment: Mapping[str, str]) -> Files:
    """Raises: ImportError: there is no pyarrow, or it is built without this storage."""
    from pyarrow.fs import GcsFileSystem

    stand_in: Dict[str, Any] = {}
    if environment.get(EMULATOR):
        scheme, _, host = environment[EMULATOR].rpartition("://")
        stand_in = {"anonymous": True, "scheme": scheme or "http", "endpoint_override": host}
    root = f"{url.bucket}/{url.prefix}".strip("/")
    return Files(GcsFileSystem(retry_time_limit=timedelta(seconds=_RETRY_S), **stand_in), root)


def serve(files: Files, connection: socket.socket) -> None:
    """Answer until the other end is closed."""
    with connection, connection.makefile("rwb") as stream:
        while line := stream.readline():
            question = json.loads(line)
            do, key = question.pop("do"), question.pop("key", "")
            content = b""
            try:
                if do == "write":
                    files.write(key, cast("BinaryIO", stream), question["count"])
                    answer: Any = None
                elif do == "read":
                    content = files.read(key, **question)
                    answer = len(content)
                else:
                    answer = _SIMPLE[do](files, key, **question)
                text = {"answer": answer}
            except FileNotFoundError as error:
                text = {"missing": _without_queries(error)}
            except Exception as error:  # noqa: BLE001  whatever a library says goes to the agent
                text = {"error": _without_queries(error)}
            if do not in ("read", "crc32") or "answer" not in text:
                files.forget()
            stream.write(json.dumps(text).encode() + b"\n" + content)
            stream.flush()
            if do == "write" and "answer" not in text:
                os._exit(_CLIENT_FAILED)


def _without_queries(error: Exception) -> str:
    """What an error says; a query of a URL may be a key, in another form than the user's secret has."""
    return _QUERY.sub("", str(error)) or type(error).__name__


_SIMPLE: Mapping[str, Callable[..., Any]] = {
    "size": Files.size, "names": Files.names, "remove": Files.remove, "crc32": Files.crc32,
    "forget": Files.forget,
}  # fmt: skip


def main(words: Sequence[str]) -> int:
    """`ADDRESS DESCRIPTOR`: a mirror, and a socket. The first line says whether it can be used."""
    connection = socket.socket(fileno=int(words[1]))
    try:
        files = open_files(parse_mirror(words[0]), os.environ)
    except Exception as error:  # noqa: BLE001  likewise
        kind = "no_pyarrow" if isinstance(error, ImportError) else "error"
        connection.sendall(json.dumps({kind: _without_queries(error)}).encode() + b"\n")
        return 1
    connection.sendall(b'{"answer": null}\n')
    serve(files, connection)
    sys.stdout.flush()
    return 0
