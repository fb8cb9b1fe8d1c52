"""The items of `.distcp` files. Each is a torch file of its own with one tensor, and nothing around it.

A file may have tens of thousands of them, so their first and last bytes, with all that describes them, are read
hundreds at once.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from cloudrl.errors import CheckpointError
from cloudrl.shards.cancellation import check
from cloudrl.shards.dist_metadata import Chunk, Item
from cloudrl.shards.dtypes import DType
from cloudrl.shards.safe_pickle import read_pickle
from cloudrl.shards.shard import Shard
from cloudrl.shards.source import ShardSource
from cloudrl.shards.tensor_table import TensorTable
from cloudrl.shards.tensors import Unreadable, is_allowed, read_view
from cloudrl.shards.torch_zip import Archive, Member, Members, open_archive

_HEAD_BYTES, _TAIL_BYTES = 1024, 2048  # all but the tensor takes 1.6 KB
_AT_ONCE = 512
_MAX_PICKLE_BYTES, _MAX_READ_BYTES = 1 << 14, 1 << 16
_ANOTHER_COPY_HINT = "Take another copy of this file, or another step: cloudrl checkpoints list"


class StoredChunk(NamedTuple):
    """A chunk, the key of its tensor, and its type."""

    key: str
    dtype: DType
    chunk: Chunk


class _ItemSource(ShardSource):
    """One item, as if it were a file; what is known of it is not read again."""

    def __init__(self, source: ShardSource, item: Item, head: bytes, tail: bytes) -> None:
        self.label = f"{source.label}, at byte {item.offset}"
        self._source, self._item = source, item
        self._known = ((0, head), (item.length - len(tail), tail))

    def size_bytes(self) -> int:
        return self._item.length

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self._read(*each) for each in ranges]

    def _read(self, offset: int, length: int) -> bytes:
        if offset < 0 or offset + length > self._item.length:
            raise CheckpointError(f"{self.label} has {self._item.length} bytes: it is cut off", hint=_ANOTHER_COPY_HINT)
        for start, data in self._known:
            if start <= offset and offset + length <= start + len(data):
                return data[offset - start : offset - start + length]
        return self._source.read(self._item.offset + offset, length)

    def crc32(self, offset: int, length: int) -> int:
        return self._source.crc32(self._item.offset + offset, length)


def open_archives(source: ShardSource, items: Sequence[Item]) -> Iterator[Archive]:
    """The items of one file as torch files, in this order; nothing but their directories is read.

    Raises:
        CheckpointError: The file is cut off, or one of them is not a torch file.
    """
    size = source.size_bytes()
    waiting = iter(items)
    while batch := list(islice(waiting, _AT_ONCE)):
        check()
        ranges = []
        for item in batch:
            if item.offset + item.length > size:
                raise CheckpointError(
                    f"{source.label} has {size} bytes, and an item of it ends at {item.offset + item.length}: "
                    "it is cut off",
                    hint=_ANOTHER_COPY_HINT,
                )
            tail = min(_TAIL_BYTES, item.length)
            ranges += [(item.offset, min(_HEAD_BYTES, item.length)), (item.offset + item.length - tail, tail)]
        ends = source.read_many(ranges)
        for item, head, tail_bytes in zip(batch, ends[::2], ends[1::2], strict=True):
            yield open_archive(_ItemSource(source, item, head, tail_bytes), tail_bytes=_TAIL_BYTES)


def open_chunks(source: ShardSource, rank: int, chunks: Sequence[StoredChunk]) -> Shard:
    """Chunks of one file; the storage of each is named by where its item begins.

    Raises:
        CheckpointError: The file is cut off, or an item is not the tensor that it should be.
    """
    archives = open_archives(source, [chunk.chunk.item for chunk in chunks])
    members = {
        storage_member(each.chunk): _storage(archive, each) for each, archive in zip(chunks, archives, strict=True)
    }
    return Shard(rank, None, Archive(source, source.label, Members.of(members), ""), TensorTable({}, {}))


def storage_member(chunk: Chunk) -> str:
    """The name of its storage among the members of `open_chunks`."""
    return f"data/{chunk.item.offset}"


def _storage(archive: Archive, wanted: StoredChunk) -> Member:
    """Where the elements of a chunk are in its file; their order is that of their indices, without gaps."""
    label, chunk = archive.source.label, wanted.chunk
    record = read_pickle(archive.pickled(_MAX_PICKLE_BYTES), is_allowed, label, max_bytes=_MAX_READ_BYTES)
    try:
        view = read_view(record)
    except Unreadable as why:
        raise CheckpointError(f"{label}: {wanted.key} is {why}", hint=_ANOTHER_COPY_HINT) from why
    member = archive.members.get(f"data/{view.storage}")
    if (
        member is None
        or view.dtype is not wanted.dtype
        or view.offset
        or _without_ones(view.shape) != _without_ones(chunk.sizes)
        or member.size_bytes != view.size_bytes
    ):
        raise CheckpointError(
            f"{label}: the part of {wanted.key} at {chunk.offsets} should be {wanted.dtype.value} of {chunk.sizes}, "
            f"and is {view.dtype.value} of {view.shape}",
            hint=_ANOTHER_COPY_HINT,
        )
    return Member(chunk.item.offset + member.offset, member.size_bytes, member.crc32)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(count for count in shape if count != 1)
