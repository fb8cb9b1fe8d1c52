"""Which tensor is where in a folder of torch's distributed format, read from its `.metadata` without running it.

That is one pickle of protocol 4 or 5 (torch 2.13, torch/distributed/checkpoint/metadata.py and filesystem.py; Megatron
0.13 to 0.19, core/dist_checkpointing/strategies/torch.py). The plans of all ranks, which Megatron appends, repeat the
rest of it and are not read.
"""

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cloudrl.errors import CheckpointError
from cloudrl.saves.megatron_layout import DIST_FILE
from cloudrl.shards.dtypes import DType
from cloudrl.shards.pickled import Name, PickledObject
from cloudrl.shards.safe_pickle import Held, Key, Makers, read_pickle
from cloudrl.shards.source import ShardSource

MAX_BYTES = 1 << 26
"""Of what stands before the plans, some 160 for an item.

What they become is limited, too, by `safe_pickle.MAX_BYTES`: to 120,000 items. An optimizer of Qwen3-235B-A22B has
76,000, three tensors for each part of its weights.
"""
_READ_BYTES = 1 << 22
_HELD_BYTES, _DIMENSION_BYTES = 200, 40  # of memory, rounded up
_MAX_DIMENSIONS = 16
_PLANS = "all_local_plans"
_PLANS_CODE = b"\x8c" + bytes([len(_PLANS)]) + _PLANS.encode()
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
_ANOTHER_COPY_HINT = "Take another copy of this folder, or another step: cloudrl checkpoints list"


@dataclass(frozen=True, slots=True)
class Item:
    """Where one item is: `length` bytes from `offset` on of a file of the folder."""

    file: str
    offset: int
    length: int

    @property
    def held_bytes(self) -> int:
        """Of memory; see `Held`."""
        return _HELD_BYTES + sys.getsizeof(self.file)


@dataclass(frozen=True, slots=True)
class _Box:
    """A chunk as it is described, without its place in a file."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def held_bytes(self) -> int:
        """Of memory; see `Held`."""
        return _HELD_BYTES + _DIMENSION_BYTES * (len(self.offsets) + len(self.sizes))


@dataclass(frozen=True, slots=True, eq=False)
class _Index(Key):
    """What names an item."""

    name: str
    offset: tuple[int, ...] | None

    @property
    def held_bytes(self) -> int:
        """Of memory; see `Held`."""
        return _HELD_BYTES + sys.getsizeof(self.name) + _DIMENSION_BYTES * len(self.offset or ())


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


_MALFORMED = (KeyError, TypeError, ValueError, IndexError, AttributeError)
"""What a record of another form ends with."""


def read_metadata(source: ShardSource) -> DistMetadata:
    """Read a `.metadata`.

    Raises:
        CheckpointError: It is damaged, names what is not allowed, or describes tensors that are not whole.
    """
    data, known = _described(source), dict[Any, Any]()
    top = read_pickle(
        data, _ALLOWED.__contains__, source.label, protocols=(4, 5), until=_PLANS, makers=_makers(known)
    )  # fmt: skip
    del data
    try:
        return _read(top.state if isinstance(top, PickledObject) else top)
    except (_Odd, *_MALFORMED) as error:
        raise CheckpointError(f"{source.label} is not as torch writes it: {error}", hint=_ANOTHER_COPY_HINT) from error


def _described(source: ShardSource) -> bytes:
    """The file up to the plans, which are longer than all before them."""
    size, data = source.size_bytes(), bytearray()
    while len(data) < min(size, MAX_BYTES + 1):
        seen = max(0, len(data) - len(_PLANS_CODE))
        data += source.read(len(data), min(_READ_BYTES, size - len(data)))
        if (end := data.find(_PLANS_CODE, seen)) >= 0:
            del data[end + len(_PLANS_CODE) :]
            break
    if not 0 < len(data) <= MAX_BYTES:
        raise CheckpointError(f"{source.label} has {size} bytes, and {MAX_BYTES} is the most", hint=_ANOTHER_COPY_HINT)
    return bytes(data)


def _makers(known: dict[Any, Any]) -> Makers:
    """What makes something smaller of the records of which there are many, with one object for what is equal."""

    def one(value: Any) -> Any:
        return known.setdefault(value, value)

    def box(state: Mapping[str, Any]) -> Held:
        return _Box(one(_numbers(state["offsets"])), one(_numbers(state["sizes"])))

    def index(state: Mapping[str, Any]) -> Held:
        name, offset = state["fqn"], state.get("offset")
        return _Index(one(str(name)), None if offset is None else one(_numbers(offset)))

    def item(state: Mapping[str, Any]) -> Held:
        found = _item(state)
        return Item(one(found.file), found.offset, found.length)

    def make(read: Callable[[Mapping[str, Any]], Held]) -> Callable[[PickledObject], Held | PickledObject]:
        def made(record: PickledObject) -> Held | PickledObject:
            try:
                return read(_state(record))
            except (_Odd, *_MALFORMED):  # whoever needs it will say why
                return record

        return made

    return {
        f"{_METADATA}.ChunkStorageMetadata": make(box),
        f"{_METADATA}.MetadataIndex": make(index),
        f"{_FILESYSTEM}._StorageInfo": make(item),
    }


def _read(top: Any) -> DistMetadata:
    described, stored = top["state_dict_metadata"], top["storage_data"]
    if not isinstance(described, dict) or not isinstance(stored, dict):
        raise _Odd("it describes no tensors")
    places: dict[_Where, Item] = {}
    for index, info in stored.items():
        where = _where(index)
        if where in places:
            raise _Odd(f"{where[0]} {where[1]} is there twice")
        places[where] = info if isinstance(info, Item) else _item(_state(info))
    stored.clear()
    tensors, objects = {}, {}
    for key, value in described.items():
        if not isinstance(key, str) or not isinstance(value, PickledObject):
            raise _Odd(f"{key!r:.80} is not a tensor")
        if value.name == f"{_METADATA}.BytesStorageMetadata":
            objects[key] = places.pop((key, None))
        else:
            tensors[key] = _tensor(key, value, places)
    if places:
        raise _Odd(f"{len(places)} items belong to no tensor, such as {next(iter(places))[0]:.80}")
    return DistMetadata(tensors, objects)


_Where = tuple[str, tuple[int, ...] | None]


def _where(index: Any) -> _Where:
    """The key of a tensor, and the offsets of a chunk of it."""
    if isinstance(index, _Index):
        return index.name, index.offset
    name, offset = _state(index)["fqn"], _state(index).get("offset")
    return str(name), None if offset is None else _numbers(offset)


def _box(value: Any) -> _Box:
    return (
        value if isinstance(value, _Box) else _Box(_numbers(_state(value)["offsets"]), _numbers(_state(value)["sizes"]))
    )


def _tensor(key: str, value: PickledObject, places: dict[_Where, Item]) -> StoredTensor:
    state = _state(value)
    dtype, shape = _dtype(key, state["properties"]), _numbers(state["size"])
    chunks = []
    for each in state["chunks"]:
        box = _box(each)
        offsets, sizes = box.offsets, box.sizes
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
        raise _Odd(f"an item would be in {path!r:.80}")
    if not all(type(each) is int and 0 <= each < 1 << 62 for each in (offset, length)):
        raise _Odd(f"an item would be at byte {offset!r:.40} of {path}")
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
        raise _Odd("an invalid shape")
    if not all(type(each) is int and 0 <= each < 1 << 48 for each in value):
        raise _Odd(f"the shape {value!r:.80}")
    return value
