"""A mirror in a folder that outlives the machines: a network volume, NFS.

A file comes as `.NAME.RANDOM.part`, is synced, read again and compared, and gets its name then. A file at the mirror's
root tells that the volume is mounted: without it nothing is written, as that would fill the disk of the node.
"""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import zlib
from pathlib import Path
from typing import BinaryIO, Callable, Dict, Iterable, Optional

from cloudrl.foreign import Malformed, read_file
from cloudrl.private_files import sync_to_disk, write_file

_PIECE_BYTES = 8 << 20
_MARK = ".cloudrl-mirror"
_PART = ".part"

Pace = Callable[[int], object]
"""Called with the bytes of each piece; waits where training is not to notice."""


class NotMountedError(OSError):
    """The mirror's mark is not there: its volume is not mounted, or nothing was ever mirrored there."""


class FolderStore:
    """A folder as a store of files by their keys, `RUN/.../data.pt`.

    Args:
        root: of the mirror.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def begin(self) -> None:
        """Make the folder and its mark, so that it may be written.

        Raises:
            OSError: the folder that it is in is not there, or cannot be written.
        """
        if not self.root.is_dir():
            self.root.mkdir()
        mark = self.root / _MARK
        if not mark.exists():
            write_file(mark, "A mirror of cloudrl: steps of durable jobs.\n", mode=0o644)

    def put(self, key: str, content: bytes) -> None:
        """Write a small file; it is there whole, or as it was before.

        Raises:
            OSError: it cannot be written.
        """
        write_file(self._place(key), content, sync=True)

    def get(self, key: str, limit_bytes: int) -> Optional[bytes]:
        """A small file; None if absent.

        Raises:
            OSError: it cannot be read, or is larger.
        """
        self._refuse_unmounted()
        try:
            return read_file(self.root / key, limit_bytes)
        except FileNotFoundError:
            return None
        except Malformed as error:
            raise OSError(f"{key}: {error}") from error

    def names(self, prefix: str) -> Dict[str, int]:
        """Key -> bytes of the files in a folder, `RUN/.cloudrl/`, none of folders in it.

        Raises:
            OSError: it cannot be listed.
        """
        self._refuse_unmounted()
        try:
            entries = list(os.scandir(self.root / prefix))
        except FileNotFoundError:
            return {}
        return {
            prefix + entry.name: entry.stat().st_size
            for entry in entries
            if not entry.name.startswith(".") and entry.is_file(follow_symlinks=False)
        }

    def remove(self, keys: Iterable[str]) -> None:
        """Remove files, and folders that are empty then.

        Raises:
            OSError: one cannot be removed.
        """
        self._refuse_unmounted()
        for key in keys:
            path = self.root / key
            for left in (path, *path.parent.glob(f".{glob.escape(path.name)}.*{_PART}")):
                with contextlib.suppress(FileNotFoundError):
                    left.unlink()
            with contextlib.suppress(OSError):
                for folder in path.parents:
                    if folder == self.root:
                        break
                    folder.rmdir()

    def open(self, key: str) -> BinaryIO:
        """Open a file for reading.

        Raises:
            OSError: it cannot be read.
        """
        self._refuse_unmounted()
        return (self.root / key).open("rb")

    def upload(self, key: str, source: BinaryIO, size_bytes: int, crc32: int, pace: Pace) -> None:
        """Have a file there, whole and compared; one that is there and equal stays.

        Raises:
            OSError: it is not there.
        """
        path = self._place(key)
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size == size_bytes and _crc_of(path, pace) == crc32:
                return
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_PART}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(part, flags, 0o600), "wb") as target:
                while piece := source.read(_PIECE_BYTES):
                    target.write(piece)
                    pace(len(piece))
                target.flush()
                os.fsync(target.fileno())
            if part.stat().st_size != size_bytes or _crc_of(part, pace) != crc32:
                raise OSError(f"{key} has changed while it was copied, or was damaged on its way")
            part.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
        sync_to_disk(path.parent)

    def warning(self, of_node: Iterable[Path]) -> str:
        """What makes the folder one that goes with the machine, as far as can be seen; "" for nothing.

        Args:
            of_node: folders on the node's own disks.
        """
        device = self.root.stat().st_dev
        same = next((path for path in of_node if path.exists() and path.stat().st_dev == device), None)
        return f"{self.root} is on the disk of {same}: it goes with the machine unless that is a volume" if same else ""

    def _place(self, key: str) -> Path:
        self._refuse_unmounted()
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _refuse_unmounted(self) -> None:
        if not (self.root / _MARK).exists():
            raise NotMountedError(f"{self.root} is not mounted: it has no file {_MARK}")


def _crc_of(path: Path, pace: Pace) -> int:
    """The CRC-32 of a file as its disk or server has it, as far as the node's memory can be left out."""
    crc = 0
    with path.open("rb", buffering=0) as file:
        with contextlib.suppress(OSError):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while piece := file.read(_PIECE_BYTES):
            crc = zlib.crc32(piece, crc)
            pace(0)
    return crc
