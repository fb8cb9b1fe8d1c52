"""Carries the pieces of the shards to their places in one output file: several threads, one piece of memory each."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from functools import cache

from cloudrl.shards.cancellation import check, workers
from cloudrl.shards.dtypes import Caster, holds_nan
from cloudrl.shards.plan import Output, Piece
from cloudrl.shards.progress import Meter
from cloudrl.shards.reading import PIECE_BYTES, PieceReader, aligned_memory, open_pieces
from cloudrl.shards.source import LocalShard, crc32
from cloudrl.shards.torch_zip import damaged

_REMOTE_PIECE_BYTES = 8 << 20  # of files on other machines: a request should carry some
_REMOTE_THREADS = 8  # they mostly wait for answers
_LOCAL_THREADS = min(4, max(2, os.cpu_count() or 2))

_Task = tuple[Output, Piece, int]
"""A piece of a tensor, and where the tensor begins in the output file."""


def copy(outputs: Sequence[Output], target: int, at: int, meter: Meter) -> set[str]:
    """Copy the tensors of one file, one after the other, to the file descriptor `target`.

    Args:
        outputs: In the order of the file.
        target: A file that is long enough.
        at: Where the first tensor begins.
        meter: Told the bytes that were read.

    Returns:
        The names of the tensors that have a NaN.

    Raises:
        CheckpointError: A shard cannot be read, or is damaged.
        OSError: The output cannot be written.
    """
    tasks: list[_Task] = []
    for output in outputs:
        tasks += [(output, piece, at) for piece in output.pieces]
        at += output.size_bytes
    is_local = all(isinstance(piece.shard.archive.source, LocalShard) for _, piece, _ in tasks)
    count = _LOCAL_THREADS if is_local else _REMOTE_THREADS
    waiting, lock = iter(tasks), threading.Lock()

    def take() -> _Task | None:
        with lock:
            return next(waiting, None)

    with workers(count, "cloudrl-merge") as pool:
        at_work = [pool.submit(_Worker(target, meter).run, take) for _ in range(count)]
        return {name for worker in as_completed(at_work) for name in worker.result()}


class _Worker:
    """What one thread does, and the memory that it does it with."""

    def __init__(self, target: int, meter: Meter) -> None:
        self._target, self._meter = target, meter
        self._memory = aligned_memory()
        self._caster = cache(Caster)

    def run(self, take: Callable[[], _Task | None]) -> set[str]:
        """Copy one piece after the other; the names of the tensors that have a NaN."""
        with_nan = set()
        for task in iter(take, None):
            output, piece, _ = task
            source = piece.shard.archive.source
            if isinstance(source, LocalShard):
                with open_pieces(source.path, self._memory) as reader:
                    saw_nan = self._copy_local(task, reader)
            else:
                saw_nan = self._copy_remote(task)
            if saw_nan:
                with_nan.add(output.name)
        return with_nan

    def _copy_local(self, task: _Task, reader: PieceReader) -> bool:
        """Read, check, cast and write in one go; whether there is a NaN."""
        output, piece, _ = task
        stored, member = piece.view.dtype, piece.shard.member(piece.view)
        start, saw_nan = piece.shard.offset(piece.view), False
        end = start + piece.view.size_bytes
        crc = _crc(reader, member.offset, start, 0) if piece.check else 0
        for at in range(start, end, PIECE_BYTES):
            check()
            data = reader.read(at, min(PIECE_BYTES, end - at))
            crc = crc32(data, crc) if piece.check else 0
            if stored is output.dtype:
                content, has_nan = data, holds_nan(data, stored)
            else:
                content, has_nan = self._caster(stored, output.dtype)(data)
            self._write(task, (at - start) // stored.size_bytes, content)
            saw_nan = saw_nan or has_nan
            self._meter.add(len(data))
        if piece.check:
            crc = _crc(reader, end, member.offset + member.size_bytes, crc)
            if crc != member.crc32:
                raise damaged(piece.shard.archive.source, f"data/{piece.view.storage}", member.crc32, crc)
        return saw_nan

    def _copy_remote(self, task: _Task) -> bool:
        """Let the other machine check and cast, and write what it sends; whether there is a NaN."""
        output, piece, _ = task
        source, stored, member = piece.shard.archive.source, piece.view.dtype, piece.shard.member(piece.view)
        if piece.check and (crc := source.crc32(member.offset, member.size_bytes)) != member.crc32:
            raise damaged(source, f"data/{piece.view.storage}", member.crc32, crc)
        start, saw_nan, step = piece.shard.offset(piece.view), False, _REMOTE_PIECE_BYTES // stored.size_bytes
        for first in range(0, piece.view.elements, step):
            check()
            count = min(step, piece.view.elements - first)
            data = source.read_cast(start + first * stored.size_bytes, count, stored, output.dtype)
            self._write(task, first, memoryview(data))
            saw_nan = saw_nan or holds_nan(data, output.dtype)
            self._meter.add(count * stored.size_bytes)
        return saw_nan

    def _write(self, task: _Task, first: int, data: memoryview) -> None:
        """Write whole elements of the output's type, of which `first` of the same piece were written before."""
        output, piece, at = task
        size, data = output.dtype.size_bytes, data.cast("B")
        written, count = 0, len(data) // size
        while written < count:
            row, column = divmod(first + written, piece.run)
            length = min(piece.run - column, count - written)
            run = data[written * size : (written + length) * size]
            place = at + (piece.start + row * piece.step + column) * size
            while run:
                done = os.pwrite(self._target, run, place)
                run, place = run[done:], place + done
            written += length


def _crc(reader: PieceReader, start: int, end: int, crc: int) -> int:
    for at in range(start, end, PIECE_BYTES):
        crc = crc32(reader.read(at, min(PIECE_BYTES, end - at)), crc)
    return crc
