"""A file of a checkpoint on some node of a cluster, read through the agent of its head."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cloudrl.checkpoints.agent_files import PermanentError
from cloudrl.errors import CheckpointError
from cloudrl.node.ranges import MAX_RANGES, MAX_RANGES_BYTES
from cloudrl.node.shard_worker import CASTS
from cloudrl.protocol import routes
from cloudrl.protocol.failures import ErrorCode
from cloudrl.shards.cast import cast_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cloudrl.checkpoints.agent_files import RangeClient
    from cloudrl.saves.inventory import FileCopy
    from cloudrl.shards.dtypes import DType

_SUMMED_AT_ONCE_BYTES = 16 << 20
"""A busy network volume may give 1 MB/s, and nothing travels meanwhile: such a sum ends within the client's timeout."""
_LEFT_TO_THE_READER = (ErrorCode.NOT_FOUND, ErrorCode.UNSUPPORTED)
"""How an agent says that it cannot calculate: without numpy for example."""


class RemoteShard:
    """See `ShardSource`; every read is a request of its own.

    Args:
        client: To the cluster.
        file: Where it lies.
    """

    def __init__(self, client: RangeClient, file: FileCopy) -> None:
        self.label = file.label
        self._client, self._size = client, file.size_bytes
        self._file: dict[str, Any] = {
            "rank": file.location.ranks[0], "root": file.location.root, "path": file.path,
        }  # fmt: skip
        self._casts = True

    def size_bytes(self) -> int:
        """See `ShardSource.size_bytes`."""
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        """See `ShardSource.read`."""
        self._check(offset, length)
        return self._fetch(offset, length)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """See `ShardSource.read_many`."""
        for offset, length in ranges:
            self._check(offset, length)
        pieces: list[bytes] = []
        for batch in _batches(ranges):
            content = self._client.call(
                routes.CHECKPOINT_RANGES, self._file, label=self.label, body={"ranges": batch}
            )
            for _, length in batch:
                pieces.append(content[:length])
                content = content[length:]
        return pieces

    def read_cast(self, offset: int, count: int, stored: DType, wanted: DType) -> bytes:
        """See `ShardSource.read_cast`; the node casts where that saves bytes."""
        pair = (stored.safetensors, wanted.safetensors)
        if not (stored.is_float and pair in CASTS and self._casts):
            return cast_bytes(self.read(offset, count * stored.size_bytes), stored, wanted)
        self._check(offset, count * CASTS[pair])
        try:
            return self._fetch(offset, count * CASTS[pair], {"cast": ",".join(pair)})
        except PermanentError as error:
            if error.code not in _LEFT_TO_THE_READER:
                raise
            self._casts = False
        return self.read_cast(offset, count, stored, wanted)

    def crc32(self, offset: int, length: int) -> int:
        """See `ShardSource.crc32`; the node sums, and only the sum travels."""
        self._check(offset, length)
        value, end = 0, offset + length
        while offset < end:
            count = min(_SUMMED_AT_ONCE_BYTES, end - offset)
            headers = {"Range": f"bytes={offset}-{offset + count - 1}"}
            answer = self._client.call(
                routes.CHECKPOINT_FILE, self._file, query={"crc32": value}, label=self.label, headers=headers
            )
            said = json.loads(answer)
            if said["size_bytes"] != count:
                raise CheckpointError(
                    f"{self.label} has changed while it was read",
                    hint="Is a job saving this step? Wait for it",
                )
            value, offset = int(said["crc32"]), offset + count
        return value

    def _fetch(self, offset: int, length: int, query: dict[str, str] | None = None) -> bytes:
        content = bytearray()
        if length:
            self._client.fetch(self._file, offset, length, label=self.label, into=content, query=query)
        return bytes(content)

    def _check(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > self._size:
            raise CheckpointError(
                f"{self.label} has {self._size} bytes, and {length} from byte {offset} on are asked for: it is cut off",
                hint="Take another copy, or another step: cloudrl checkpoints list",
            )


def _batches(ranges: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    batch: list[tuple[int, int]] = []
    size = 0
    for offset, length in ranges:
        if batch and (len(batch) == MAX_RANGES // 2 or size + length > MAX_RANGES_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((offset, length))
        size += length
    if batch:
        yield batch
