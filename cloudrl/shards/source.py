"""The files of a checkpoint, wherever each of them is: what a merge and a check take.

A file is read by byte range, cast and checked where its bytes are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from cloudrl.errors import CheckpointError
from cloudrl.saves.records import SaveRecord
from cloudrl.shards.dtypes import DType, cast_bytes

try:  # four times as fast as zlib's, where it is installed; a node has only numpy and zlib itself
    from zlib_ng.zlib_ng import crc32 as crc32  # noqa: PLC0414  offered here
except ImportError:
    from zlib import crc32 as crc32  # noqa: PLC0414

_PIECE_BYTES = 1 << 20


class ShardSource(Protocol):
    """One file of a checkpoint; threads share it.

    Everything raises `CheckpointError`. Callers never retry: a source that can go on after a break does so by itself.
    """

    label: str
    """For messages: `node 1 (10.0.0.2): /checkpoints/.../model_world_size_2_rank_1.pt`."""

    def size_bytes(self) -> int:
        """Of the whole file."""

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes, or an error."""
        return self.read_many([(offset, length)])[0]

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Several short ranges `(offset, length)`: hundreds of headers should cost one round trip, not hundreds."""

    def read_cast(self, offset: int, count: int, stored: DType, wanted: DType) -> bytes:
        """`count` elements of type `stored` from the byte `offset` on, as little-endian `wanted` (`cast_bytes`)."""
        return cast_bytes(self.read(offset, count * stored.size_bytes), stored, wanted)

    def crc32(self, offset: int, length: int) -> int:
        """CRC-32 (zlib) of these bytes, calculated where they are."""


class LocalShard(ShardSource):
    """A file on this machine.

    Args:
        path: The file; it is opened at each read, so a source holds nothing.
        label: For messages; the path, if not given.
    """

    def __init__(self, path: Path, *, label: str | None = None) -> None:
        self.path = path
        self.label = label or str(path)

    def size_bytes(self) -> int:
        """See `ShardSource.size_bytes`."""
        try:
            return self.path.stat().st_size
        except OSError as error:
            raise self._unreadable(error) from error

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """See `ShardSource.read_many`."""
        try:
            with self.path.open("rb") as file:
                return [self._read_exactly(file, offset, length) for offset, length in ranges]
        except OSError as error:
            raise self._unreadable(error) from error

    def crc32(self, offset: int, length: int) -> int:
        """See `ShardSource.crc32`."""
        value, end = 0, offset + length
        while offset < end:
            piece = self.read(offset, min(_PIECE_BYTES, end - offset))
            value, offset = crc32(piece, value), offset + len(piece)
        return value

    def _read_exactly(self, file: BinaryIO, offset: int, length: int) -> bytes:
        file.seek(offset)
        data = file.read(length)
        if missing := length - len(data):
            raise CheckpointError(
                f"{self.label} ends at byte {offset + len(data)}, and {missing} more were expected: it is cut off",
                hint="Take another copy, or another step: cloudrl checkpoints list",
            )
        return data

    def _unreadable(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"{self.label} cannot be read: {error.strerror or error}")


@dataclass(frozen=True)
class Sidecars:
    """What is beside a rank's model shard and tells which step it is from; any of it may be missing."""

    optim: ShardSource | None = None
    extra: ShardSource | None = None
    record: SaveRecord | None = None


@dataclass(frozen=True)
class MergeInputs:
    """The files of one role (actor, critic) of one step.

    Attributes:
        shards: The model file of each rank; with replicas (HSDP), at least one rank of each part.
        config_files: What is in `huggingface/`, by its path in there.
        world_size: Ranks of the run; without it, what the files say.
        sidecars: What else is there of each rank, to make sure that all are from one step.
        step: That the folder is named after; None if unknown.
        warnings: What is odd about the files, to be told.
        lora: `lora_train_meta.json`, which a model with a LoRA adapter has beside its shards.
        adapter_config: peft's `adapter_config.json`, if somebody has put that of the run's first adapter there.
        first_adapter: The adapter that the run started from (`model.lora_adapter_path`); "" if it made one itself, and
            None if nothing tells.
    """

    shards: Mapping[int, ShardSource]
    config_files: Mapping[str, bytes] = field(default_factory=dict)
    world_size: int | None = None
    sidecars: Mapping[int, Sidecars] = field(default_factory=dict)
    step: int | None = None
    warnings: tuple[str, ...] = ()
    lora: bytes | None = None
    adapter_config: bytes | None = None
    first_adapter: str | None = None
