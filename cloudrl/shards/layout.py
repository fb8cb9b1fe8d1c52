"""How a model is cut over the ranks, and whether their shards fit together."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cloudrl.errors import CheckpointError
from cloudrl.protocol.ranks import spans
from cloudrl.shards.report import Finding
from cloudrl.shards.shard import Shard
from cloudrl.shards.tensors import Tensor

_MESHES = (("fsdp",), ("ddp", "fsdp"))  # verl 0.9.1, workers/engine/fsdp/utils.py, `create_device_mesh`
_MAX_RANKS = 1 << 17
"""More than any run has had; a file may say any number."""


@dataclass(frozen=True)
class Layout:
    """The cut.

    Attributes:
        world_size: Ranks of the run.
        parts: Pieces of each sharded tensor. Rank r has piece r % parts; with `parts < world_size` there are
            replicas, and any of them will do.
    """

    world_size: int
    parts: int

    def holders(self, part: int) -> range:
        """The ranks that have this piece."""
        return range(part, self.world_size, self.parts)


def read_layout(shards: Sequence[Shard], world_size: int | None) -> Layout:
    """Read the cut from the meshes of all shards.

    Args:
        shards: At least one.
        world_size: If the caller knows it (`fsdp_config.json`).

    Raises:
        CheckpointError: They are from runs of different sizes, or cut in a way that is not supported.
    """
    sizes = {size for size in (world_size, *(shard.world_size for shard in shards)) if size is not None}
    meshes = {
        (tensor.mesh.names, tensor.mesh.shape)
        for shard in shards
        for tensor in shard.tensors.kinds
        if tensor.mesh is not None
    }
    sizes |= {math.prod(shape) for _, shape in meshes}
    if len(sizes) > 1:
        raise CheckpointError(f"these shards are from runs of {' and '.join(map(str, sorted(sizes)))} ranks")
    if max(sizes, default=0) > _MAX_RANKS:
        raise CheckpointError(f"these shards say that they are from a run of {max(sizes)} ranks")
    if len(meshes) > 1:
        raise CheckpointError(f"the tensors are on different meshes: {sorted(meshes)}")
    if not sizes:
        raise CheckpointError("no file says how many ranks the run had", hint="Keep fsdp_config.json with the shards.")
    if not meshes:
        return Layout(sizes.pop(), 1)
    names, shape = meshes.pop()
    if names not in _MESHES or len(shape) != len(names):
        raise CheckpointError(
            f"the device mesh has the dimensions {names} {shape}; only FSDP and its replicas are supported: {_MESHES}"
        )
    return Layout(sizes.pop(), shape[-1])


def check_together(shards: Mapping[int, Shard], layout: Layout) -> Iterator[Finding]:
    """What does not fit: missing ranks, other tensors, types or shapes, parts that do not make the whole."""
    yield from _missing_ranks(tuple(shards), layout)
    first = next(iter(shards.values()))
    for rank, shard in shards.items():
        if rank >= layout.world_size:
            yield Finding(f"there is no rank {rank} among {layout.world_size}", rank, shard.label)
        mine, theirs = shard.tensors, first.tensors
        if mine.rows is theirs.rows:
            pairs = set(zip(mine.which, theirs.which, strict=True))
            if not any(_problem(mine.kinds[one], theirs.kinds[other], rank, layout) for one, other in pairs):
                continue
        elif mine.keys() != theirs.keys():
            odd = sorted(mine.keys() ^ theirs.keys())
            message = f"{len(odd)} tensors are on one of the ranks {first.rank} and {rank} only: {', '.join(odd[:3])}"
            yield Finding(message, rank, shard.label)
            continue
        for name, tensor in mine.items():
            if problem := _problem(tensor, theirs[name], rank, layout):
                yield Finding(f"{name}: {problem}", rank, shard.label)


def _problem(tensor: Tensor, first: Tensor, rank: int, layout: Layout) -> str | None:
    """Why a rank's tensor is not its part of what another has; its place in the file does not matter."""
    return _mismatch(tensor, first) or _part_problem(tensor, rank, layout)


def _missing_ranks(present: Sequence[int], layout: Layout) -> Iterator[Finding]:
    """A finding for each piece that no rank has, and a mild one for each absent rank that has a replica."""
    for part in range(layout.parts):
        holders = layout.holders(part)
        absent = [rank for rank in holders if rank not in present]
        holder = next((rank for rank in holders if rank in present), None)
        if holder is None:
            holding, there = " or ".join(map(str, holders)), spans(present) or "none"
            message = f"no shard of rank {holding}: have {there} of {layout.world_size} ranks"
            yield Finding(message, absent[0])
        else:
            for rank in absent:
                yield Finding(f"no shard of rank {rank}; rank {holder} has the same part", rank, fatal=False)


def _mismatch(tensor: Tensor, other: Tensor) -> str | None:
    """Why two ranks' views of one tensor contradict each other."""
    if (tensor.mesh is None) != (other.mesh is None):
        return "sharded on one rank and whole on another"
    for what, mine, theirs in (
        ("shape", tensor.shape, other.shape),
        ("type", tensor.view.dtype.value, other.view.dtype.value),
        ("placement", tensor.placements, other.placements),
    ):
        if mine != theirs:
            return f"its {what} is {mine} here and {theirs} on another rank"
    return None


def shard_dim(tensor: Tensor) -> int | None:
    """The dimension along which a tensor is cut; None if every rank has the whole."""
    if tensor.mesh is None or tensor.placements[-1].kind == "Replicate":
        return None
    return tensor.placements[-1].dim


def _part_problem(tensor: Tensor, rank: int, layout: Layout) -> str | None:
    """Why a rank's part is not the one that the cut gives it."""
    if tensor.mesh is None:
        return None
    kinds = [placement.kind for placement in tensor.placements]
    is_known = kinds[-1:] in (["Shard"], ["Replicate"]) and set(kinds[:-1]) <= {"Replicate"}
    if len(kinds) != len(tensor.mesh.shape) or not is_known:
        return f"it is placed as {kinds}, which is not supported"
    dim = shard_dim(tensor)
    if dim is not None and not 0 <= dim < len(tensor.shape):
        return f"it is cut along dimension {dim} and has {len(tensor.shape)}"
    expected = part_shape(tensor.shape, dim, rank % layout.parts, layout.parts)
    if tensor.view.shape != expected:
        return f"part {rank % layout.parts} of {layout.parts} of {tensor.shape} has {tensor.view.shape}, not {expected}"
    return None


def part_shape(shape: tuple[int, ...], dim: int | None, part: int, parts: int) -> tuple[int, ...]:
    """The shape of one part: `torch.chunk` gives each the same number of rows, rounded up, and the last ones less."""
    if dim is None:
        return shape
    start, end = part_range(shape[dim], part, parts)
    return (*shape[:dim], end - start, *shape[dim + 1 :])


def part_range(rows: int, part: int, parts: int) -> tuple[int, int]:
    """First row and the row after the last of one part."""
    each = -(-rows // parts)
    return min(rows, part * each), min(rows, (part + 1) * each)
