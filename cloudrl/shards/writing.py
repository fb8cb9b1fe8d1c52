"""Writes torch files from the bytes of others: several threads, one piece of memory each.

Each byte is read once. The CRC-32 of a run counts for both the member that is read and the one that is written: what
was read is compared with what its file says when all has been read.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cloudrl.shards.cancellation import check
from cloudrl.shards.crc_joining import join_crc32
from cloudrl.shards.new_files import PICKLE, NewFile, Run
from cloudrl.shards.progress import Meter
from cloudrl.shards.reading import PIECE_BYTES, aligned_memory, open_pieces
from cloudrl.shards.source import LocalShard, ShardSource, crc32
from cloudrl.shards.torch_zip import Archive, damaged
from cloudrl.shards.torch_zip_writer import directory, lay_out, local_header

_REMOTE_PIECE_BYTES = 2 << 20
_LOCAL_THREADS = min(4, max(2, os.cpu_count() or 2))
_REMOTE_THREADS = 8
_ZEROS = bytes(1 << 16)


def thread_count(archives: Mapping[int, Archive]) -> int:
    """How many threads copy: those of other machines mostly wait for answers."""
    is_local = all(isinstance(archive.source, LocalShard) for archive in archives.values())
    return _LOCAL_THREADS if is_local else _REMOTE_THREADS


@dataclass(frozen=True, slots=True)
class _Task:
    """A run and where it goes; `index` numbers the runs of a file."""

    index: int
    run: Run
    at: int


class FileWriter:
    """Writes one file after the other from the files of all ranks.

    Args:
        archives: Those that are read, by rank.
        pool: Threads.
        threads: How many of them.
        meter: Told the bytes of runs.
    """

    def __init__(self, archives: Mapping[int, Archive], pool: ThreadPoolExecutor, threads: int, meter: Meter) -> None:
        self._archives, self._pool, self._threads, self._meter = archives, pool, threads, meter
        self._sums = {rank: _Sums(archive) for rank, archive in archives.items()}
        self._local = threading.local()
        self._open: set[int] = set()

    def close(self) -> None:
        """Close what a failure has left open; to be called when no thread writes any more."""
        while self._open:
            os.close(self._open.pop())

    def write(self, file: NewFile, folder: Path) -> None:
        """Write a file that does not exist.

        Raises:
            CheckpointError: A file cannot be read.
            OSError: The new one cannot be written.
        """
        slots = lay_out(file.root, [(content.name, content.size_bytes) for content in file.contents])
        descriptor = os.open(folder / f"{file.root}.pt", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._open.add(descriptor)
        os.ftruncate(descriptor, slots[-1].offset + slots[-1].size_bytes)
        sums = self._copy(file, [slot.offset for slot in slots], descriptor)
        for content, slot, crc in zip(file.contents, slots, sums, strict=True):
            _write(descriptor, local_header(slot, crc) + (content.literal or b""), slot.header_at)
        _write(descriptor, directory(slots, sums), slots[-1].offset + slots[-1].size_bytes)
        self._open.remove(descriptor)
        os.close(descriptor)

    def finish(self) -> None:
        """Read what no file has taken, and compare the CRC-32 of all that was read.

        Raises:
            CheckpointError: A file is damaged.
        """
        for each in self._sums.values():
            each.finish()

    def _copy(self, file: NewFile, offsets: list[int], descriptor: int) -> list[int]:
        """Copy all runs; the CRC-32 of each member of the new file."""
        runs = [run for content in file.contents for run in content.runs]
        crcs = [0] * len(runs)
        tasks, lock = _tasks(file, offsets), threading.Lock()

        def take() -> _Task | None:
            with lock:
                return next(tasks, None)

        def work() -> None:
            for task in iter(take, None):
                crcs[task.index] = self._copy_run(task, descriptor)

        for worker in [self._pool.submit(work) for _ in range(self._threads)]:
            worker.result()
        return list(self._joined(file, iter(crcs)))

    def _joined(self, file: NewFile, crcs: Iterator[int]) -> Iterator[int]:
        for content in file.contents:
            if content.literal is not None:
                yield crc32(content.literal)
                continue
            total, length = 0, 0
            for run in content.runs:
                crc = next(crcs)
                self._sums[run.rank].add(run, crc)
                total, length = join_crc32(total, crc, run.length), length + run.length
            yield _with_zeros(total, content.size_bytes - length)

    def _copy_run(self, task: _Task, descriptor: int) -> int:
        run, source = task.run, self._archives[task.run.rank].source
        start = self._archives[run.rank].members[run.member].offset + run.start
        crc, at = 0, task.at
        for piece in self._pieces(source, start, run.length):
            crc = crc32(piece, crc)
            _write(descriptor, piece, at)
            at += len(piece)
            self._meter.add(len(piece))
        return crc

    def _pieces(self, source: ShardSource, start: int, length: int) -> Iterator[bytes | memoryview]:
        if not isinstance(source, LocalShard):
            yield from _ranges(source.read, start, length, _REMOTE_PIECE_BYTES)
            return
        if not hasattr(self._local, "memory"):
            self._local.memory = aligned_memory()
        with open_pieces(source.path, self._local.memory) as reader:
            yield from _ranges(reader.read, start, length, PIECE_BYTES)


def _ranges(
    read: Callable[[int, int], bytes | memoryview], start: int, length: int, size: int
) -> Iterator[bytes | memoryview]:
    for at in range(start, start + length, size):
        check()
        yield read(at, min(size, start + length - at))


def _tasks(file: NewFile, offsets: list[int]) -> Iterator[_Task]:
    index = 0
    for content, start in zip(file.contents, offsets, strict=True):
        at = start
        for run in content.runs:
            yield _Task(index, run, at)
            at, index = at + run.length, index + 1


class _Sums:
    """The CRC-32 of each member of a file, as far as it was read from its beginning."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._read: dict[str, tuple[int, int]] = {}  # up to where, and the CRC-32 until there

    def add(self, run: Run, crc: int) -> None:
        """A run was read; one that was counted before is left out."""
        end, total = self._read.get(run.member, (0, 0))
        if run.start != end and run.start + run.length > end:
            end, total = self._read_on(run.member, end, total, max(end, run.start))
        if run.start == end:
            self._read[run.member] = end + run.length, join_crc32(total, crc, run.length)
        elif run.start + run.length > end:
            self._read[run.member] = self._read_on(run.member, end, total, run.start + run.length)

    def finish(self) -> None:
        """Read the rest of each member, and compare."""
        for name, member in self._archive.members.items():
            if name == PICKLE or not self._archive.has_crcs:
                continue  # compared when it was read
            end, total = self._read.get(name, (0, 0))
            _, total = self._read_on(name, end, total, member.size_bytes)
            if total != member.crc32:
                raise damaged(self._archive.source, name, member.crc32, total)

    def _read_on(self, name: str, end: int, total: int, stop: int) -> tuple[int, int]:
        """Read bytes that no run has."""
        start = self._archive.members[name].offset
        for piece in _ranges(self._archive.source.read, start + end, stop - end, PIECE_BYTES):
            total = crc32(piece, total)
        return stop, total


def _with_zeros(crc: int, count: int) -> int:
    """The CRC-32 with so many zero bytes behind."""
    while count > 0:
        crc = crc32(_ZEROS[:count], crc)
        count -= len(_ZEROS)
    return crc


def _write(descriptor: int, data: bytes | memoryview, at: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(descriptor, view, at)
        view, at = view[done:], at + done
