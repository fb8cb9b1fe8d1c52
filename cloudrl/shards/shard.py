"""One rank's model file, opened: which tensors it has, and where their bytes are."""

from dataclasses import dataclass
from typing import Any

from cloudrl.errors import CheckpointError
from cloudrl.saves.names import SHARD
from cloudrl.shards.safe_pickle import MAX_BYTES, Makers, read_pickle
from cloudrl.shards.source import ShardSource
from cloudrl.shards.tensor_table import TensorTable
from cloudrl.shards.tensors import Tensor, Unreadable, View, is_allowed, read_tensor, tensor_makers
from cloudrl.shards.torch_zip import Archive, Member, open_archive

_PUT_BACK = "Put the file of rank {rank} back in its place, or take another step: cloudrl checkpoints list"
_BESIDE_TENSORS = 1 << 20
"""Bytes of a pickle that are of no tensor: groups of an optimizer, states of random generators."""
_MAX_RECORDS_BYTES = 8 * MAX_BYTES
"""Of the records of 250,000 tensors; those of one rank are read at a time."""
_MAX_NAME = 500
_PROTOCOLS = (2, 3, 4, 5)
"""torch writes 2 by default; of the others a state dict needs no more than `.metadata` does."""
_STREAM = "archive"  # the root of a file that was saved to a stream, so without a name


@dataclass(frozen=True)
class Shard:
    """A rank's part of the model.

    Attributes:
        rank: Which it was opened as.
        world_size: Of the run that saved it; None if the file does not say.
        tensors: By name, in the order of the model's state dict.
    """

    rank: int
    world_size: int | None
    archive: Archive
    tensors: TensorTable

    @property
    def label(self) -> str:
        """For messages."""
        return self.archive.source.label

    def member(self, view: View) -> Member:
        """The storage of a view; `open_shard` has checked that it is there and long enough."""
        return self.archive.members[f"data/{view.storage}"]

    def row(self, view: View) -> int:
        """The row of its storage among the members."""
        return self.archive.members.row(f"data/{view.storage}")

    def offset(self, view: View) -> int:
        """Where the elements of a view begin in the file, in bytes."""
        return self.member(view).offset + view.offset * view.dtype.size_bytes


def open_shard(source: ShardSource, rank: int, known: dict[Any, Any] | None = None) -> Shard:
    """Read directory and pickle of a model file. No tensor data are read.

    Args:
        source: The file.
        rank: Whose it is.
        known: Values that shards share, to be passed for each of them: a merge has those of all ranks in memory.

    Raises:
        CheckpointError: It is cut off, damaged, of another rank, or holds what is not to be merged.
    """
    known = {} if known is None else known
    archive, label = open_archive(source, known=known), source.label
    world_size = saved_as(archive, "model", rank)
    state = read_state(archive, known)
    if not isinstance(state, dict) or not state:
        raise CheckpointError(f"{label} holds no state dict, but {type(state).__name__}")
    tensors = {}
    for key, value in state.items():
        name = str(key)
        if len(name) > _MAX_NAME or not name.isprintable():
            raise CheckpointError(f"{label}: a tensor is named {name[:_MAX_NAME]!r}, as no model has it")
        try:
            tensors[name] = read_tensor(value)
        except Unreadable as why:
            raise CheckpointError(
                f"{label}: {name} is {why}, which cloudrl cannot merge",
                hint="FSDP saves plain tensors and parts of them. If another step has these, merge that: "
                "cloudrl checkpoints list",
            ) from why
    for name, tensor in tensors.items():
        check_tensor(archive, rank, name, tensor)
    return Shard(rank, world_size, archive, TensorTable(tensors, known))


def read_state(archive: Archive, known: dict[Any, Any] | None = None) -> Any:
    """What a file holds: tensors and views (`tensor_makers`), and records of everything else.

    A tensor takes some 700 bytes, and 3.8 KB more while it is read. A pickle that is several times larger than the
    tensors of its file need is refused before it takes memory.

    Args:
        archive: The file.
        known: Values that files share.

    Raises:
        CheckpointError: Its pickle is damaged, too large, or names what is not allowed.
    """
    return _read(archive, MAX_BYTES, tensor_makers({} if known is None else known))


def read_records(archive: Archive) -> Any:
    """The same with a record of each tensor, as it was pickled.

    Raises:
        CheckpointError: See `read_state`.
    """
    return _read(archive, _MAX_RECORDS_BYTES, {})


def _read(archive: Archive, max_bytes: int, makers: Makers) -> Any:
    storages = len(archive.members)
    data = archive.pickled(max_bytes=_BESIDE_TENSORS + storages * 4096)
    most = min(max_bytes, 2 * _BESIDE_TENSORS + storages * 10240)
    return read_pickle(data, is_allowed, archive.source.label, max_bytes=most, protocols=_PROTOCOLS, makers=makers)


def saved_as(archive: Archive, kind: str, rank: int) -> int | None:
    """The world size in the name that the file had when it was saved; None if it had none.

    Raises:
        CheckpointError: It was saved as another rank's file, or as something else.
    """
    if archive.root == _STREAM:
        return None
    match = SHARD.fullmatch(f"{archive.root}.pt")
    if match is None or match[1] != kind or int(match[3]) != rank:
        raise CheckpointError(
            f"{archive.source.label} was saved as {archive.root}.pt, so it is not the {kind} file of rank {rank}: "
            "it was renamed, or copied over another one",
            hint=_PUT_BACK.format(rank=rank),
        )
    return int(match[2])


def _coordinate(rank: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Where a rank stands in a mesh whose ranks are counted row by row."""
    found: tuple[int, ...] = ()
    for size in reversed(shape):
        rank, here = divmod(rank, size)
        found = (here, *found)
    return found


def check_tensor(archive: Archive, rank: int, name: str, tensor: Tensor) -> None:
    """Raises: CheckpointError: another rank wrote it, as far as it says so, or its storage is not there."""
    label, view = archive.source.label, tensor.view
    writer = tensor.mesh.rank if tensor.mesh is not None else None
    if writer not in (None, rank):
        raise CheckpointError(
            f"{label} was written by rank {writer}, not by rank {rank}: it was copied over another one",
            hint=_PUT_BACK.format(rank=rank),
        )
    if tensor.mesh is not None and tensor.mesh.coordinate not in (None, _coordinate(rank, tensor.mesh.shape)):
        raise CheckpointError(
            f"{label}: the device mesh of {name} has its ranks in another order, and rank {rank} at "
            f"{tensor.mesh.coordinate}, not at {_coordinate(rank, tensor.mesh.shape)}; such a cut cannot be merged"
        )
    member = archive.members.get(f"data/{view.storage}")
    needed = (view.offset + view.elements) * view.dtype.size_bytes
    if member is None or needed > member.size_bytes:
        has = "is missing" if member is None else f"has {member.size_bytes}"
        raise CheckpointError(f"{label}: {name} needs {needed} bytes of storage {view.storage}, which {has}")
