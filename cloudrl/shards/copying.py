"""Carries the pieces of the shards to their places in one output file: several threads, one piece of memory each."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudrl.shards.cancellation import Cancelled, workers
from cloudrl.shards.cast import Caster, holds_nan
from cloudrl.shards.crc import crc32
from cloudrl.shards.reading import PIECE_BYTES, AlignedBuffer
from cloudrl.shards.source import LocalShard
from cloudrl.shards.torch_zip import damaged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cloudrl.shards.dtypes import DType
    from cloudrl.shards.plan import Output, Piece
    from cloudrl.shards.progress import Meter
    from cloudrl.shards.reading import PieceReader

_REMOTE_PIECE_BYTES = 8 << 20  # of files on other machines: a request should carry some
MAX_THREADS = 4


@dataclass(frozen=True)
class CopyTask:
    """A piece of a tensor, and where the tensor begins in the output file."""

    output: Output
    piece: Piece
    at: int


def copy_tasks(outputs: Iterable[Output], at: int) -> Iterator[CopyTask]:
    """All pieces of one file whose tensors begin at byte `at`."""
    for output in outputs:
        for piece in output.pieces:
            yield CopyTask(output, piece, at)
        at += output.size_bytes


class Copier:
    """Copies tasks into output files.

    Args:
        meter: Told the bytes that were read.
        threads: How many at once; by default as many as there are processors, at least 2 and at most 4.
    """

    def __init__(self, meter: Meter, *, threads: int | None = None) -> None:
        self._meter = meter
        self._threads = threads or min(MAX_THREADS, max(2, os.cpu_count() or 2))
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.with_nan: set[str] = set()
        """Names of the tensors that had a NaN."""

    def copy(self, tasks: Iterable[CopyTask], target: int) -> None:
        """Copy all tasks to the file descriptor `target`.

        Raises:
            CheckpointError: A shard cannot be read, or is damaged.
            OSError: The output cannot be written.
        """
        waiting = iter(tasks)
        with workers(self._threads, self._stop, "cloudrl-merge") as pool:
            at_work = [pool.submit(self._work, waiting, target) for _ in range(self._threads)]
            for worker in at_work:
                worker.result()
        self._stop.clear()

    def _work(self, waiting: Iterator[CopyTask], target: int) -> None:
        worker = _Worker(target)
        try:
            while not self._stop.is_set():
                with self._lock:
                    task = next(waiting, None)
                if task is None:
                    return
                self._copy(task, worker)
        except Cancelled:  # another thread knows why
            return
        except BaseException:
            self._stop.set()
            raise

    def _copy(self, task: CopyTask, worker: _Worker) -> None:
        source = task.piece.shard.archive.source
        if isinstance(source, LocalShard):
            with worker.buffer.reading(source.path) as reader:
                saw_nan = self._copy_local(task, worker, reader)
        else:
            saw_nan = self._copy_remote(task, worker)
        if saw_nan:
            with self._lock:
                self.with_nan.add(task.output.name)

    def _copy_local(self, task: CopyTask, worker: _Worker, reader: PieceReader) -> bool:
        """Read, check, cast and write in one go."""
        piece, stored = task.piece, task.output.stored
        member = piece.shard.archive.members[f"data/{piece.storage}"]
        start, end = piece.offset, piece.offset + piece.elements * stored.size_bytes
        crc = _crc(reader, member.offset, start, 0) if piece.check else 0
        caster, saw_nan = worker.caster(stored, task.output.dtype), False
        for at in range(start, end, PIECE_BYTES):
            if self._stop.is_set():
                return False
            data = reader.read(at, min(PIECE_BYTES, end - at))
            crc = crc32(data, crc) if piece.check else 0
            worker.write(
                task, (at - start) // stored.size_bytes, data if caster is None else caster(data).data
            )
            saw_nan = saw_nan or (caster is None and holds_nan(data, stored))
            self._meter.add(len(data))
        if piece.check:
            crc = _crc(reader, end, member.offset + member.size_bytes, crc)
            if crc != member.crc32:
                raise damaged(piece.shard.archive.source, f"data/{piece.storage}", member.crc32, crc)
        return saw_nan or (caster is not None and caster.take_nan())

    def _copy_remote(self, task: CopyTask, worker: _Worker) -> bool:
        """Let the other machine check and cast, and write what it sends."""
        piece, stored, source = task.piece, task.output.stored, task.piece.shard.archive.source
        member, saw_nan = piece.shard.archive.members[f"data/{piece.storage}"], False
        if piece.check and (crc := source.crc32(member.offset, member.size_bytes)) != member.crc32:
            raise damaged(source, f"data/{piece.storage}", member.crc32, crc)
        step = _REMOTE_PIECE_BYTES // stored.size_bytes
        for first in range(0, piece.elements, step):
            if self._stop.is_set():
                return False
            count = min(step, piece.elements - first)
            data = source.read_cast(
                piece.offset + first * stored.size_bytes, count, stored, task.output.dtype
            )
            worker.write(task, first, memoryview(data))
            saw_nan = saw_nan or holds_nan(data, task.output.dtype)
            self._meter.add(count * stored.size_bytes)
        return saw_nan


def _crc(reader: PieceReader, start: int, end: int, crc: int) -> int:
    for at in range(start, end, PIECE_BYTES):
        crc = crc32(reader.read(at, min(PIECE_BYTES, end - at)), crc)
    return crc


class _Worker:
    """What one thread works with."""

    def __init__(self, target: int) -> None:
        self.buffer = AlignedBuffer()
        self._target = target
        self._casters: dict[tuple[DType, DType], Caster] = {}

    def caster(self, stored: DType, wanted: DType) -> Caster | None:
        """The same one for each pair of types; None where nothing is to be done."""
        if stored is wanted:
            return None
        return self._casters.setdefault((stored, wanted), Caster(stored, wanted))

    def write(self, task: CopyTask, first: int, data: memoryview) -> None:
        """Write whole elements of the output's type, of which `first` of the same piece were written before."""
        piece, size, data = task.piece, task.output.dtype.size_bytes, data.cast("B")
        written, count = 0, len(data) // size
        while written < count:
            row, column = divmod(first + written, piece.run)
            length = min(piece.run - column, count - written)
            place = task.at + (piece.start + row * piece.step + column) * size
            _write_all(self._target, data[written * size : (written + length) * size], place)
            written += length


def _write_all(target: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(target, data[done:], offset + done)


def total_bytes(outputs: Sequence[Output]) -> int:
    """What is read from the shards for them."""
    return sum(output.elements * output.stored.size_bytes for output in outputs)
