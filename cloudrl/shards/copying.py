"""Carries the pieces of the shards to their places in the output files: several threads, one piece of memory each.

The unit of work is a storage of a shard. It is read once, from its first byte to its last, so that its CRC-32 covers
what is written; each part of it goes to every tensor that it belongs to. There may be a million storages, so a task is
made when a thread takes it.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from functools import cache

from cloudrl.shards.cancellation import check, workers
from cloudrl.shards.dtypes import Caster, DType, holds_infinity, holds_nan
from cloudrl.shards.low_rank import Adder, Updates, as_floats
from cloudrl.shards.plan import Output, Piece
from cloudrl.shards.progress import Meter
from cloudrl.shards.reading import PIECE_BYTES, PieceReader, aligned_memory, open_pieces
from cloudrl.shards.shard import Shard
from cloudrl.shards.source import LocalShard, crc32
from cloudrl.shards.torch_zip import damaged

_REMOTE_PIECE_BYTES = 2 << 20  # of files on other machines: eight threads hold one or two each
_REMOTE_THREADS = 8  # they mostly wait for answers
_LOCAL_THREADS = min(4, max(2, os.cpu_count() or 2))
_UPDATE_THREADS = 2  # each keeps parts of an adapter in memory
_UPDATE_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class Target:
    """A file to be filled: its descriptor, its tensors in their order, and where the first of them begins."""

    file: int
    outputs: Sequence[Output]
    at: int


@dataclass(frozen=True, slots=True)
class _Place:
    """A piece, and the file and byte at which its tensor begins."""

    output: Output
    piece: Piece
    file: int
    at: int

    @property
    def start(self) -> int:
        """Where it begins in its storage, in bytes."""
        return self.piece.view.offset * self.piece.view.dtype.size_bytes

    @property
    def end(self) -> int:
        """Where it ends there."""
        return self.start + self.piece.view.size_bytes


_Task = Sequence[_Place]
"""All that one storage gives, in the order of the storage."""


def copy(targets: Sequence[Target], meter: Meter) -> set[str]:
    """Copy all tensors to their files, which are long enough.

    Args:
        targets: The files.
        meter: Told the bytes that were read.

    Returns:
        What to look at, a sentence each: tensors with NaN, or with numbers that became infinite.

    Raises:
        CheckpointError: A shard cannot be read, or is damaged.
        OSError: The output cannot be written.
    """
    work = _survey(targets)
    is_local = all(isinstance(shard.archive.source, LocalShard) for shard in work.shards)
    count = _LOCAL_THREADS if is_local else _REMOTE_THREADS
    updates = None
    if work.has_updates:
        count = _UPDATE_THREADS
        updates = Updates(count)
    tasks, lock = _tasks(targets, work.shared), threading.Lock()

    def take() -> _Task | None:
        with lock:
            return next(tasks, None)

    with workers(count, "cloudrl-merge") as pool:
        at_work = [pool.submit(_Worker(meter, updates).run, take) for _ in range(count)]
        return {sentence for worker in as_completed(at_work) for sentence in worker.result()}


_Storage = tuple[int, str]
"""The id of a shard, and the key of a storage in it."""


@dataclass(frozen=True)
class _Survey:
    """What there is to do.

    Attributes:
        shards: Those that are read.
        has_updates: Whether an adapter is added.
        shared: The storages that have more than one piece, with all of these.
    """

    shards: Sequence[Shard]
    has_updates: bool
    shared: Mapping[_Storage, list[_Place]]


def _survey(targets: Sequence[Target]) -> _Survey:
    shards: dict[int, Shard] = {}
    used: dict[int, bytearray] = {}  # once, or more often
    has_updates = is_shared = False
    for piece in _pieces(targets):
        shard = piece.shard
        mine = used.get(id(shard))
        if mine is None:
            shards[id(shard)] = shard
            mine = used[id(shard)] = bytearray(len(shard.archive.members))
        row = shard.row(piece.view)
        is_shared = is_shared or mine[row] == 1
        mine[row] = min(2, mine[row] + 1)
        has_updates = has_updates or piece.update is not None
    shared: dict[_Storage, list[_Place]] = {}
    for place in _places(targets) if is_shared else ():
        shard, view = place.piece.shard, place.piece.view
        if used[id(shard)][shard.row(view)] > 1:
            shared.setdefault((id(shard), view.storage), []).append(place)
    return _Survey(tuple(shards.values()), has_updates, shared)


def _tasks(targets: Sequence[Target], shared: Mapping[_Storage, list[_Place]]) -> Iterator[_Task]:
    """In the order in which the outputs first need them."""
    for place in _places(targets):
        others = shared.get((id(place.piece.shard), place.piece.view.storage))
        if others is None:
            yield [place]
        elif others[0] == place:
            yield sorted(others, key=lambda place: place.start)


def _pieces(targets: Sequence[Target]) -> Iterator[Piece]:
    return (piece for target in targets for output in target.outputs for piece in output.pieces)


def _places(targets: Sequence[Target]) -> Iterator[_Place]:
    for target in targets:
        at = target.at
        for output in target.outputs:
            for piece in output.pieces:
                yield _Place(output, piece, target.file, at)
            at += output.size_bytes


class _Worker:
    """What one thread does, and the memory that it does it with."""

    def __init__(self, meter: Meter, updates: Updates | None) -> None:
        self._meter = meter
        self._adder = Adder(updates) if updates is not None else None
        self._memory = aligned_memory()
        self._caster = cache(Caster)
        self._odd: set[str] = set()

    def run(self, take: Callable[[], _Task | None]) -> set[str]:
        """Copy one storage after the other; what to look at."""
        for task in iter(take, None):
            source = task[0].piece.shard.archive.source
            if isinstance(source, LocalShard):
                with open_pieces(source.path, self._memory) as reader:
                    self._copy_local(task, reader)
            else:
                self._copy_remote(task)
        return self._odd

    def _copy_local(self, task: _Task, reader: PieceReader) -> None:
        """Read, check, cast and write in one go."""
        shard, view = task[0].piece.shard, task[0].piece.view
        member = shard.member(view)
        crc, passed = 0, 0
        for at in range(0, member.size_bytes, PIECE_BYTES):
            check()
            data = reader.read(member.offset + at, min(PIECE_BYTES, member.size_bytes - at))
            end = at + len(data)
            crc = crc32(data, crc) if shard.archive.has_crcs else 0
            while passed < len(task) and task[passed].end <= at:
                passed += 1
            for place in task[passed:]:
                if place.start >= end:
                    break
                start, stop = max(place.start, at), min(place.end, end)
                if start < stop:
                    self._put(place, start, data[start - at : stop - at], place.piece.view.dtype)
                    self._meter.add(stop - start)
        if shard.archive.has_crcs and crc != member.crc32:
            raise damaged(shard.archive.source, f"data/{view.storage}", member.crc32, crc)

    def _copy_remote(self, task: _Task) -> None:
        """Let the other machine check and cast, and write what it sends."""
        shard, view = task[0].piece.shard, task[0].piece.view
        source, member = shard.archive.source, shard.member(view)
        if shard.archive.has_crcs and (crc := source.crc32(member.offset, member.size_bytes)) != member.crc32:
            raise damaged(source, f"data/{view.storage}", member.crc32, crc)
        for place in task:
            stored, wanted, step = place.piece.view.dtype, place.output.dtype, _REMOTE_PIECE_BYTES
            if place.piece.update is not None:
                wanted, step = stored, _UPDATE_PIECE_BYTES
            for start in range(place.start, place.end, step):
                check()
                size_bytes = min(step, place.end - start)
                data = source.read_cast(member.offset + start, size_bytes // stored.size_bytes, stored, wanted)
                self._put(place, start, memoryview(data), wanted)
                self._meter.add(size_bytes)

    def _put(self, place: _Place, start: int, data: memoryview, dtype: DType) -> None:
        """Add, cast and write elements of type `dtype`; `start` is where they stood in the storage, in bytes."""
        wanted, passed = place.output.dtype, (start - place.start) // place.piece.view.dtype.size_bytes
        if place.piece.update is not None and self._adder is not None:
            values = as_floats(data, dtype)
            self._adder.add(place.piece.update, place.piece.first + passed, values)
            data, dtype = values.data, DType.FLOAT32
        if dtype is wanted:
            content, has_nan = data, holds_nan(data, dtype)
        else:
            content, has_nan = self._caster(dtype, wanted)(data)
        _write(place, passed, content)
        if has_nan:
            self._odd.add(f"{place.output.name} has NaN")
        if wanted is DType.FLOAT16 and place.piece.view.dtype is not wanted and holds_infinity(content):
            self._odd.add(f"{place.output.name} has infinity: fp16 ends at 65504, and bf16 and fp32 do not")


def _write(place: _Place, first: int, data: memoryview) -> None:
    """Write whole elements of the output's type, of which `first` of the same piece stand before."""
    piece, size, data = place.piece, place.output.dtype.size_bytes, data.cast("B")
    written, count = 0, len(data) // size
    while written < count:
        row, column = divmod(first + written, piece.run)
        length = min(piece.run - column, count - written)
        run = data[written * size : (written + length) * size]
        at = place.at + (piece.start + row * piece.step + column) * size
        while run:
            done = os.pwrite(place.file, run, at)
            run, at = run[done:], at + done
        written += length
