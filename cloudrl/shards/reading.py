"""Reading a shard's bytes piece by piece: from the page cache if they are there, else past it.

What is cached is copied at memory speed. What is not is read with O_DIRECT in pieces of 1 MiB, which was up to
twice as fast as through the cache with four threads, and leaves the cache to others.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from cloudrl.errors import CheckpointError

PIECE_BYTES = 1 << 20
_ALIGN = 4096
# Linux only; elsewhere everything goes through the cache.
_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
_DIRECT: int = getattr(os, "O_DIRECT", 0)


def aligned_memory() -> memoryview:
    """Memory for one piece, aligned as O_DIRECT wants it; one for each thread."""
    return memoryview(mmap.mmap(-1, PIECE_BYTES + 2 * _ALIGN))


@contextmanager
def open_pieces(path: Path, memory: memoryview) -> Generator[PieceReader]:
    """Open a file for as long as one of its storages is read.

    Raises:
        CheckpointError: It cannot be opened.
    """
    with ExitStack() as stack:
        try:
            cached = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
        stack.callback(os.close, cached)
        direct = None
        if _DIRECT:
            with suppress(OSError):  # a file system that has no such reads, as tmpfs
                direct = os.open(path, os.O_RDONLY | os.O_CLOEXEC | _DIRECT)
                stack.callback(os.close, direct)
        yield PieceReader(path, cached, direct, memory)


class PieceReader:
    """An open file and the memory into which it is read."""

    def __init__(self, path: Path, cached: int, direct: int | None, memory: memoryview) -> None:
        self._path, self._cached, self._direct, self._memory = path, cached, direct, memory

    def read(self, offset: int, length: int) -> memoryview:
        """At most `PIECE_BYTES` bytes; the next call overwrites them.

        Raises:
            CheckpointError: The file ends before, or the disk fails.
        """
        try:
            return self._from_cache(offset, length) or self._past_cache(offset, length) or self._read(offset, length)
        except OSError as error:
            raise CheckpointError(f"{self._path} cannot be read at byte {offset}: {error.strerror}") from error

    def _from_cache(self, offset: int, length: int) -> memoryview | None:
        if not _NOWAIT or self._direct is None:
            return None
        view = self._memory[:length]
        try:
            return view if os.preadv(self._cached, [view], offset, _NOWAIT) == length else None
        except OSError:  # not cached (EAGAIN), or a file system that cannot tell
            return None

    def _past_cache(self, offset: int, length: int) -> memoryview | None:
        if self._direct is None:
            return None
        start = offset & -_ALIGN
        end = (offset + length + _ALIGN - 1) & -_ALIGN
        try:
            got = os.preadv(self._direct, [self._memory[: end - start]], start)
        except OSError:  # some file systems refuse it only now (EINVAL); a disk that fails does so again in `_read`
            self._direct = None
            return None
        if got < offset + length - start:
            return None
        return self._memory[offset - start : offset - start + length]

    def _read(self, offset: int, length: int) -> memoryview:
        got = 0
        while got < length:
            count = os.preadv(self._cached, [self._memory[got:length]], offset + got)
            if not count:
                raise CheckpointError(f"{self._path} ends at byte {offset + got}: it became shorter while it was read")
            got += count
        return self._memory[:length]
