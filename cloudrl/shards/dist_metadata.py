"""Which tensor lies where in a folder of torch's distributed format, read from its `.metadata` without running it.

That is one pickle of protocol 4 or 5 (torch 2.13, torch/distributed/checkpoint/metadata.py and filesystem.py; Megatron
0.13 to 0.19, core/dist_checkpointing/strategies/torch.py). The plans of all ranks, which Megatron appends, repeat the
rest of it and are not read.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cloudrl.errors import CheckpointError
from cloudrl.saves.megatron_layout import DIST_FILE
from cloudrl.shards.dtypes import DType
from cloudrl.shards.safe_pickle import Name, PickledObject, read_pickle
from cloudrl.shards.source import ShardSource

MAX_BYTES = 1 << 26
_MAX_DIMENSIONS = 16
_PLANS = "all_local_plans"
_METADATA, _FILESYSTEM = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"
_PLANNER, _MEGATRON = "torch.distributed.checkpoint.planner", "megatron.core.dist_checkpointing.strategies.torch"
_DTYPES = {f"torch.{dtype.value}": dtype for dtype in DType}
_ALLOWED = frozenset({
    *(f"{_METADATA}.{name}" for name in (
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties",
        "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
    )),
    f"{_FILESYSTEM}._StorageInfo", f"{_FILESYSTEM}._StoragePrefix",
    *(f"{_PLANNER}.{name}" for name in ("SavePlan", "WriteItem", "WriteItemType", "TensorWriteData")),
    f"{_MEGATRON}.MCoreMetadata", f"{_MEGATRON}.MCoreSavePlan",
    "torch.Size", "torch.serialization._get_layout", "pathlib.PosixPath", *_DTYPES,
})  # fmt: skip
_ANOTHER = "Take another copy of this folder, or another step: cloudrl checkpoints list"


@dataclass(frozen=True, slots=True)
class Item:
    """Where one item lies: `length` bytes from `offset` on of a file of the folder."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A box of a tensor, and the item that has it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    item: Item


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor: its chunks tile it, without gap or overlap."""

    dtype: DType
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True)
class DistMetadata:
    """A folder: its tensors by key, and its other objects, of which nothing but the place is known."""

    tensors: Mapping[str, StoredTensor]
    objects: Mapping[str, Item]

    def items(self) -> list[Item]:
        """All of them."""
        chunks = (chunk.item for tensor in self.tensors.values() for chunk in tensor.chunks)
        return [*chunks, *self.objects.values()]


class _Odd(Exception):
    """Not as torch writes it."""


def read_metadata(source: ShardSource) -> DistMetadata:
    """Read a `.metadata`.

    Raises:
        CheckpointError: It is damaged, names what is not allowed, or describes tensors that are not whole.
    """
    size = source.size_bytes()
    if not 0 < size <= MAX_BYTES:
        raise CheckpointError(f"{source.label} has {size} bytes, and {MAX_BYTES} is the most", hint=_ANOTHER)
    # some 2.2 KB for a chunk, of which a model with 94 layers of 128 experts has 36,000
    data = source.read(0, size)
    top = read_pickle(data, _ALLOWED.__contains__, source.label, protocols=(4, 5), until=_PLANS)
    try:
        return _read(top.state if isinstance(top, PickledObject) else top)
    except (_Odd, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise CheckpointError(f"{source.label} is not as torch writes it: {error}", hint=_ANOTHER) from error


def _read(top: Any) -> DistMetadata:
    described, stored = top["state_dict_metadata"], top["storage_data"]
    if not isinstance(described, dict) or not isinstance(stored, dict):
        raise _Odd("it describes no tensors")
    places = {}
    for index, info in stored.items():
        name, offsets = _state(index)["fqn"], _state(index).get("offset")
        where = str(name), None if offsets is None else _numbers(offsets)
        if where in places:
            raise _Odd(f"{name} {where[1]} is there twice")
        places[where] = _item(_state(info))
    tensors, objects = {}, {}
    for key, value in described.items():
        if not isinstance(key, str) or not isinstance(value, PickledObject):
            raise _Odd(f"{key!r:.80} is no tensor")
        if value.name == f"{_METADATA}.BytesStorageMetadata":
            objects[key] = places.pop((key, None))
        else:
            tensors[key] = _tensor(key, value, places)
    if places:
        raise _Odd(f"{len(places)} items belong to no tensor, such as {next(iter(places))[0]:.80}")
    return DistMetadata(tensors, objects)


def _tensor(key: str, value: PickledObject, places: dict[tuple[str, tuple[int, ...] | None], Item]) -> StoredTensor:
    state = _state(value)
    dtype, shape = _dtype(key, state["properties"]), _numbers(state["size"])
    chunks = []
    for each in state["chunks"]:
        offsets, sizes = _numbers(_state(each)["offsets"]), _numbers(_state(each)["sizes"])
        item = places.pop((key, offsets), None)
        if item is None:
            raise _Odd(f"no item has the part of {key} at {offsets}")
        if math.prod(sizes) * dtype.size_bytes > item.length:
            raise _Odd(f"the part of {key} at {offsets} of {sizes} does not fit into its {item.length} bytes")
        chunks.append(Chunk(offsets, sizes, item))
    if not _tile(chunks, shape, 0):
        raise _Odd(f"the parts of {key} do not make a whole of {shape}")
    return StoredTensor(dtype, shape, tuple(chunks))


def _tile(chunks: Iterable[Chunk], shape: tuple[int, ...], dim: int) -> bool:
    """Whether chunks make the whole, from dimension `dim` on: in each, cuts of one and the same place."""
    chunks = list(chunks)
    if any(len(chunk.sizes) != len(shape) or len(chunk.offsets) != len(shape) for chunk in chunks):
        return False
    if dim == len(shape):
        return len(chunks) == 1
    slabs: dict[tuple[int, int], list[Chunk]] = {}
    for chunk in chunks:
        slabs.setdefault((chunk.offsets[dim], chunk.sizes[dim]), []).append(chunk)
    at = 0
    for first, size in sorted(slabs):
        if first != at or not size:
            return False
        at += size
    return at == shape[dim] and all(_tile(slab, shape, dim + 1) for slab in slabs.values())


def _item(state: Mapping[str, Any]) -> Item:
    if state.get("transform_descriptors"):
        raise _Odd("its items are transformed (compressed or encrypted), which cannot be read")
    path, offset, length = state["relative_path"], state["offset"], state["length"]
    if not isinstance(path, str) or not DIST_FILE.fullmatch(path):
        raise _Odd(f"an item would lie in {path!r:.80}")
    if not all(type(each) is int and 0 <= each < 1 << 62 for each in (offset, length)):
        raise _Odd(f"an item would lie at byte {offset!r:.40} of {path}")
    return Item(path, offset, length)


def _dtype(key: str, properties: Any) -> DType:
    state = properties.state if isinstance(properties, PickledObject) else None
    name = state[0] if isinstance(state, tuple) and state else None
    if not isinstance(name, Name) or name.text not in _DTYPES:
        raise _Odd(f"{key} is of a type that is not known")
    return _DTYPES[name.text]


def _state(value: Any) -> dict[str, Any]:
    if not isinstance(value, PickledObject) or not isinstance(value.state, dict):
        raise _Odd(f"{type(value).__name__} where a record belongs")
    return value.state


def _numbers(value: Any) -> tuple[int, ...]:
    if isinstance(value, PickledObject) and value.name == "torch.Size" and len(value.args) == 1:
        value = value.args[0]
    if not isinstance(value, tuple) or len(value) > _MAX_DIMENSIONS:
        raise _Odd("a shape that is none")
    if not all(type(each) is int and 0 <= each < 1 << 48 for each in value):
        raise _Odd(f"the shape {value!r:.80}")
    return value
