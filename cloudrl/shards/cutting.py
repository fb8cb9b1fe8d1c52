"""How each tensor of a save is cut over the ranks, and which bytes of the old cut a rank of a new one needs.

FSDP gives rank r of W the rows from r * c on, with c = ceil(rows / W) (`cloudrl.shards.layout.part_range`). A flat
parameter of FSDP1 is cut in the same way, and its last parts are filled with zeros to the length of the others.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from cloudrl.errors import CheckpointError
from cloudrl.shards.flat_units import unit_lengths
from cloudrl.shards.layout import part_range, part_shape, shard_dim
from cloudrl.shards.new_files import Run
from cloudrl.shards.shard import Shard
from cloudrl.shards.tensors import Tensor
from cloudrl.shards.validate import same_bytes


class How(Enum):
    """How a tensor is divided."""

    ROWS = auto()
    FLAT = auto()
    SAME = auto()
    """Not at all: every rank has the whole."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A tensor and its division; `shape` is that of the whole, without padding."""

    how: How
    shape: tuple[int, ...]

    def part_shape(self, part: int, parts: int) -> tuple[int, ...]:
        """What one of so many ranks has."""
        if self.how is How.FLAT:
            return (-(-self.shape[0] // parts),)
        return part_shape(self.shape, None if self.how is How.SAME else 0, part, parts)

    @property
    def row_elements(self) -> int:
        """Elements that stay together."""
        return math.prod(self.shape[1:])


@dataclass(frozen=True)
class Table:
    """The tensors of all ranks' files of one kind.

    Attributes:
        kind: `model` or `optim`.
        shards: By rank, from 0 to the last.
        lengths: Of flat parameters, by name.
        is_unwrapped: Whether ranks have whole tensors that FSDP1 would cut if there were more than one rank.
        uncut: Of these, names of tensors that it would not: buffers.
    """

    kind: str
    shards: Mapping[int, Shard]
    lengths: Mapping[str, int] = field(default_factory=dict)
    is_unwrapped: bool = False
    uncut: frozenset[str] = frozenset()

    def cut(self, name: str) -> Cut:
        """How a tensor is cut."""
        tensor = self.shards[0].tensors[name]
        if name in self.lengths:
            return Cut(How.FLAT, (self.lengths[name],))
        is_cut = shard_dim(tensor) is not None or (self.is_unwrapped and name not in self.uncut and tensor.shape)
        return Cut(How.ROWS if is_cut else How.SAME, tensor.shape)

    def runs(self, name: str, cut: Cut, part: int, parts: int) -> Iterator[Run]:
        """The bytes of one of so many parts of a tensor that is cut."""
        first, end = part_range(cut.shape[0], part, parts)
        for rank, shard in self.shards.items():
            start, stop = part_range(cut.shape[0], rank, len(self.shards))
            low, high = max(first, start), min(end, stop)
            if low < high and cut.row_elements:
                view = shard.tensors.view(name)
                row = cut.row_elements * view.dtype.size_bytes
                at = view.offset * view.dtype.size_bytes + (low - start) * row
                yield Run(rank, f"data/{view.storage}", at, (high - low) * row)

    @property
    def cut_bytes(self) -> int:
        """Of all tensors that are cut, each counted once."""
        return sum(self._bytes(name) for name in self._stored() if self.cut(name).how is not How.SAME)

    @property
    def uncut_bytes(self) -> int:
        """Of all that every rank has."""
        return sum(self._bytes(name) for name in self._stored() if self.cut(name).how is How.SAME)

    def identity(self, name: str) -> tuple[Any, ...]:
        """Equal for tensors that share a storage, tied ones; another rank may have none of them, and storages alike."""
        tensor = self.shards[0].tensors[name]
        return tensor.view.storage, tensor.view.offset, tensor.shape, tensor.view.dtype

    def _stored(self) -> Collection[str]:
        """A name of each storage."""
        return {self.identity(name): name for name in self.shards[0].tensors}.values()

    def padding_bytes(self, parts: int) -> Iterator[int]:
        """Of each flat parameter, for all of so many ranks."""
        for name, length in self.lengths.items():
            each = -(-length // parts)
            yield (each * parts - length) * self.shards[0].tensors.view(name).dtype.size_bytes

    def _bytes(self, name: str) -> int:
        return math.prod(self.cut(name).shape) * self.shards[0].tensors.view(name).dtype.size_bytes


def refuse_other_cuts(shards: Mapping[int, Shard]) -> None:
    """Raises: CheckpointError: a tensor is cut along another dimension than the first, as FSDP2 does if asked to."""
    for name, tensor in shards[0].tensors.items():
        if shard_dim(tensor) not in (None, 0):
            raise CheckpointError(
                f"{name} is cut along dimension {shard_dim(tensor)}, and only the first can be cut anew"
            )


def optimizer_table(shards: Mapping[int, Shard], models: Mapping[int, Shard], parameters: int) -> Table:
    """How the state of an optimizer is cut.

    Args:
        shards: The optimizer's file of each rank.
        models: The model's.
        parameters: How many the optimizer was made for.

    Raises:
        CheckpointError: It is cut in a way that is not known, or what all ranks should have differs.
    """
    first = shards[0]
    plain = {name: tensor for name, tensor in first.tensors.items() if tensor.mesh is None}
    flat = {name: tensor for name, tensor in plain.items() if tensor.shape}
    refuse_other_cuts(shards)
    if flat and len(plain) < len(first.tensors):
        raise unknown_units(first, f"{next(iter(flat))} is whole, and other tensors are cut")
    if odd := next((name for name, tensor in flat.items() if len(tensor.shape) != 1), None):
        raise unknown_units(
            first, f"{odd} has the shape {flat[odd].shape}, as without flat parameters (use_orig_params)"
        )
    for shard in shards.values():
        for name in plain.keys() - flat.keys():
            if shard is not first and not same_bytes(first, shard, name):
                raise CheckpointError(f"{shard.label}: {name} differs from that of rank 0; both should be the same")
    return Table("optim", shards, _lengths(first, flat, models, parameters))


def _lengths(first: Shard, flat: Mapping[str, Tensor], models: Mapping[int, Shard], parameters: int) -> dict[str, int]:
    chunks: dict[int, int] = {}
    for name, tensor in flat.items():
        number = int(name.partition(".")[0])
        if chunks.setdefault(number, tensor.shape[0]) != tensor.shape[0]:
            raise unknown_units(first, f"the state of parameter {number} has parts of several lengths")
    if len(models) == 1:
        return {name: tensor.shape[0] for name, tensor in flat.items()}
    lengths = unit_lengths(list(models.values()), chunks, parameters) if chunks else {}
    if lengths is None:
        raise unknown_units(first, f"it is for {parameters} flat parameters, and which tensors these are is not clear")
    return {name: lengths[int(name.partition(".")[0])] for name in flat}


def check_padding(table: Table) -> None:
    """Make sure that what is behind the true length of each flat parameter is zero, as torch leaves it.

    Raises:
        CheckpointError: It is not, so the length is another one.
    """
    parts = len(table.shards)
    for name, length in table.lengths.items():
        each = -(-length // parts)
        for rank, shard in table.shards.items():
            first, end = part_range(length, rank, parts)
            view, padding = shard.tensors.view(name), each - (end - first)
            if not padding:
                continue
            size = view.dtype.size_bytes
            data = shard.archive.source.read(shard.offset(view) + (end - first) * size, padding * size)
            if data.strip(b"\0"):
                raise unknown_units(shard, f"{name} has {padding} elements behind its end that are not zero")


def unknown_units(shard: Shard, why: str) -> CheckpointError:
    """The error for an optimizer of FSDP1 whose flat parameters are not those of layers."""
    return CheckpointError(
        f"the optimizer of {shard.label} cannot be cut anew: {why}",
        hint="FSDP1 is cut if its units are layers (no wrap_policy.min_num_params) and use_orig_params is false. "
        "Go on with the same number of GPUs, or train with strategy fsdp2 next time.",
    )
