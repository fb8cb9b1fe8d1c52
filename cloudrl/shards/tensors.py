"""From the inert records of a `.pt` file to tensors: shape, type, placement, and where their bytes are."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cloudrl.shards.dtypes import DType
from cloudrl.shards.pickled import Name, PickledObject, Storage
from cloudrl.shards.safe_pickle import Held, Makers

_PREFIXES = (  # of torch 2.4 to 2.13; `_tensor` became `tensor` in 2.5
    "torch.distributed.tensor.",
    "torch.distributed._tensor.",
    "torch.distributed.device_mesh.",
    "torch.distributed._mesh_layout.",
)
_REFUSED_BY_NAME = ("torch.distributed._shard.", "torch.distributed.remote_device.")
"""Of ShardedTensor, which FSDP1 saves without a device mesh: read, so that the message can say what it is."""
_CLASSES = frozenset({
    "DTensor", "DTensorSpec", "TensorMeta", "ShardOrderEntry", "DeviceMesh", "_MeshLayout", "_FlatLayout", "Shard",
    "Replicate", "_StridedShard", "Partial", "_Partial",
})  # fmt: skip
_STORAGES = {dtype.storage: dtype for dtype in DType}
_DTYPES = {f"torch.{dtype.value}": dtype for dtype in DType}
_VIEW_BYTES, _TENSOR_BYTES, _DIMENSION_BYTES = 256, 600, 48  # of memory, rounded up
_MAX_DIMENSIONS = 64  # torch 2.13, ATen/WrapDimUtilsMulti.h: dim_bitset_size
TENSOR = "torch._utils._rebuild_tensor_v2"
_TENSOR_OF_TYPE = "torch._utils._rebuild_tensor_v3"  # of types that never had a storage class of their own
METADATA_AT = {"torch._utils._rebuild_tensor": 4, TENSOR: 6, _TENSOR_OF_TYPE: 7}
"""How a plain tensor is pickled, and which argument has bits that change its values (torch 2.13, _utils.py)."""
AROUND = frozenset({
    "torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor",
})  # fmt: skip
"""What has a tensor as its first argument, and the same values."""
OF_TYPE = "torch._tensor._rebuild_from_type_v2"
"""Of a class of its own, as DTensor is; of a plain tensor with attributes, too. FSDP1 sets `_has_been_cloned` where a
shard group has one rank (torch 2.13, distributed/fsdp/_state_dict_utils.py, `_common_unshard_post_state_dict_hook`)."""
_PLAIN = frozenset({"torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer"})
_MAX_AROUND = 4
WRAPPER = "torch._utils._rebuild_wrapper_subclass"
_PLAIN_NAMES = frozenset({
    "collections.OrderedDict", "collections.defaultdict", "collections.Counter", "builtins.set", "builtins.complex",
    "builtins.slice", "_codecs.encode", "numpy.dtype", "numpy.ndarray", "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct", "numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar",
    "torch.Size", "torch.device", "torch.serialization._get_layout", "torch.storage.UntypedStorage", OF_TYPE, WRAPPER,
    *METADATA_AT, *AROUND, *_PLAIN,
})  # fmt: skip


def is_allowed(name: str) -> bool:
    """Whether a checkpoint of verl may name this: tensors, how they are sharded, random states, plain containers."""
    if name in _PLAIN_NAMES or name in _STORAGES or name in _DTYPES:
        return True
    if name.startswith(_PREFIXES):
        return name.rpartition(".")[2] in _CLASSES
    return name.startswith(_REFUSED_BY_NAME)


@dataclass(frozen=True, slots=True)
class View:
    """A tensor in one file: its elements are one after the other in a storage.

    Attributes:
        storage: The key of the storage.
        offset: Its first element, in elements.
        shape: Elements in each dimension. The storage may be larger: FSDP2 pads uneven shards.
    """

    storage: str
    dtype: DType
    offset: int
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Of them."""
        return self.elements * self.dtype.size_bytes

    @property
    def held_bytes(self) -> int:
        """Of memory; see `Held`."""
        return _VIEW_BYTES + sys.getsizeof(self.storage) + _DIMENSION_BYTES * len(self.shape)


@dataclass(frozen=True, slots=True)
class Placement:
    """A tensor on one dimension of the mesh: `Shard` (of `dim`), `Replicate`, or what is not supported."""

    kind: str
    dim: int = 0


@dataclass(frozen=True, slots=True)
class Mesh:
    """The ranks that share a tensor.

    Attributes:
        names: `("fsdp",)`, or `("ddp", "fsdp")` with replicas.
        shape: Ranks in each dimension; rank = its coordinate, counted row by row.
        rank: The rank that saved the file, where torch tells (2.9 on).
        coordinate: Where that rank stands in the mesh, where torch tells.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    rank: int | None
    coordinate: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the model as one rank's file has it.

    Attributes:
        shape: Of the whole.
        view: This rank's part; the whole without a mesh.
    """

    shape: tuple[int, ...]
    view: View
    mesh: Mesh | None = None
    placements: tuple[Placement, ...] = ()

    @property
    def held_bytes(self) -> int:
        """Of memory; see `Held`."""
        beside = len(self.shape) + len(self.placements) + (2 * len(self.mesh.shape) if self.mesh else 0)
        return self.view.held_bytes + _TENSOR_BYTES + _DIMENSION_BYTES * beside


class Unreadable(Exception):
    """A value of a state dict is not a tensor that is known here; the message says what it is instead."""


_Odd = (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError)
"""A record may be of any form; an unexpected one must not end in a traceback."""


def tensor_makers(known: dict[Any, Any]) -> Makers:
    """What makes views and tensors of their records while a pickle is read.

    Args:
        known: Values that many tensors have, in this pickle and in others.
    """
    mesh_of = _LastMesh()

    def one(value: Any) -> Any:
        return known.setdefault(value, value)

    def view(record: PickledObject) -> Held | PickledObject:
        try:
            found = read_view(record)
        except Unreadable:  # whoever knows its name will say so
            return record
        return View(found.storage, found.dtype, found.offset, one(found.shape))

    def tensor(record: PickledObject) -> Held | PickledObject:
        if (plain := _without_attributes(record)) is not record:
            return view(plain)
        try:
            found = _sharded(record, mesh_of)
        except (Unreadable, *_Odd):
            return record
        return Tensor(one(found.shape), found.view, one(found.mesh), one(found.placements))

    def around(record: PickledObject) -> Held | PickledObject:
        inner = record.args[0]
        return inner if isinstance(inner, View | Tensor) else record

    return {
        **dict.fromkeys(METADATA_AT, view),
        **dict.fromkeys(AROUND, around),
        OF_TYPE: tensor,
    }


class _LastMesh:
    """The mesh of a record; many tensors have the same one after the other."""

    def __init__(self) -> None:
        self._record: Any = None
        self._mesh: Mesh | None = None

    def __call__(self, record: Any) -> Mesh:
        if self._mesh is None or record is not self._record:
            self._record, self._mesh = record, _mesh(record)
        return self._mesh


def read_tensor(value: Any) -> Tensor:
    """Make a tensor of a record, or of what `TensorMakers` made of it.

    Raises:
        Unreadable: It is something else.
    """
    try:
        value = _bare(value)
        if isinstance(value, Tensor):
            return value
        if isinstance(value, PickledObject) and value.name == OF_TYPE:
            return _sharded(value, _mesh)
    except _Odd as error:
        raise _unknown(error) from error
    view = read_view(value)
    return Tensor(view.shape, view)


def read_view(value: Any) -> View:
    """Make a view of the record of a plain tensor.

    Raises:
        Unreadable: It is something else.
    """
    try:
        value = _bare(value)
        return value if isinstance(value, View) else _view(value)
    except _Odd as error:
        raise _unknown(error) from error


def _bare(value: Any) -> Any:
    """A tensor without what may be around it: that it is a parameter, and attributes."""
    for _ in range(_MAX_AROUND):
        if not isinstance(value, PickledObject):
            break
        value = value.args[0] if value.name in AROUND and value.args else _without_attributes(value)
    return value


def _without_attributes(value: PickledObject) -> PickledObject:
    """The record of a plain tensor in that of one with attributes; anything else as it is."""
    if value.name != OF_TYPE or len(value.args) < 3:
        return value
    maker, kind, args = value.args[:3]
    if not isinstance(maker, Name) or not isinstance(kind, Name) or not isinstance(args, tuple):
        return value
    is_plain = kind.text in _PLAIN and (maker.text in METADATA_AT or maker.text in AROUND)
    return PickledObject(maker.text, args) if is_plain else value


def _unknown(error: Exception) -> Unreadable:
    return Unreadable(f"a tensor of a form that torch does not write ({error})")


def _view(value: Any) -> View:
    if not isinstance(value, PickledObject) or value.name not in METADATA_AT:
        raise Unreadable(f"a {value.name if isinstance(value, PickledObject) else type(value).__name__}")
    if len(value.args) < 4 or not isinstance(value.args[0], Storage):
        raise Unreadable("a tensor without a storage")
    storage, offset, size, stride = value.args[:4]
    dtype = _STORAGES.get(storage.kind)
    if value.name == _TENSOR_OF_TYPE:
        dtype = _dtype(value.args[6] if len(value.args) > 6 else None)
    if dtype is None:
        raise Unreadable(f"a tensor in a {storage.kind}")
    bits = value.args[METADATA_AT[value.name] :][:1]
    if bits and isinstance(bits[0], dict) and any(bits[0].values()):
        raise Unreadable(f"a tensor whose values are stored otherwise ({', '.join(map(str, bits[0]))[:80]})")
    shape, strides = _numbers(size), _numbers(stride)
    if len(strides) != len(shape):
        raise Unreadable(f"a tensor of shape {shape} with the strides {strides}")
    if not _is_contiguous(shape, strides):
        raise Unreadable(f"a tensor of shape {shape} with gaps (strides {strides})")
    return View(storage.key, dtype, _numbers((offset,))[0], shape)


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements are one after the other in the order of their indices."""
    expected = 1
    if 0 in shape:
        return True
    for count, stride in zip(reversed(shape), reversed(strides), strict=True):
        if count != 1 and stride != expected:
            return False
        expected *= count
    return True


def _sharded(value: PickledObject, mesh_of: Callable[[Any], Mesh]) -> Tensor:
    maker, kind, args, state = value.args[:4] if len(value.args) >= 4 else (None,) * 4
    name = kind.text if isinstance(kind, Name) else type(kind).__name__
    if (
        not isinstance(maker, Name)
        or maker.text != WRAPPER
        or not name.endswith(".DTensor")
        or not isinstance(args, tuple)
        or len(args) < 3
    ):
        raise Unreadable(f"a {name}")
    whole = PickledObject(name, ())
    whole.state = state
    spec, view = whole.get("_spec"), read_view(whole.get("_local_tensor"))
    if not isinstance(spec, PickledObject):
        raise Unreadable("a DTensor without its placement")
    if _dtype(args[1]) is not view.dtype:
        raise Unreadable(f"a DTensor whose part on this rank is of another type, {view.dtype.value}")
    placements = spec.get("placements")
    if not isinstance(placements, tuple) or not _is_short(placements):
        raise Unreadable("a DTensor without placements")
    return Tensor(
        _numbers(args[2]), view, mesh_of(spec.get("mesh")), tuple(_placement(placement) for placement in placements)
    )


def _placement(value: Any) -> Placement:
    if not isinstance(value, PickledObject):
        raise Unreadable("a DTensor without placements")
    dim = value.get("dim") if value.state is not None else (value.args[0] if value.args else 0)
    return Placement(value.name.rpartition(".")[2], dim if isinstance(dim, int) else 0)


def _mesh(value: Any) -> Mesh:
    if not isinstance(value, PickledObject):
        raise Unreadable("a DTensor without a mesh")
    names = value.get("_mesh_dim_names") or value.get("mesh_dim_names") or ()
    if not _is_short(names) or not all(isinstance(name, str) for name in names):
        raise Unreadable("a DTensor whose mesh has impossible names")
    rank, shape = value.get("_rank"), _mesh_shape(value)
    if len(shape) > _MAX_DIMENSIONS or 0 in shape:
        raise Unreadable("a DTensor whose mesh has an impossible shape")
    coordinate = value.get("_coordinate_on_dim")
    return Mesh(
        tuple(names), shape, rank if isinstance(rank, int) else None,
        _numbers(tuple(coordinate)) if _is_short(coordinate) else None,
    )  # fmt: skip


def _mesh_shape(mesh: PickledObject) -> tuple[int, ...]:
    layout = mesh.get("_layout")
    if isinstance(layout, PickledObject):  # torch 2.10 on; one flat layout a dimension from 2.12 on
        axes = layout.get("axes")
        if not isinstance(axes, tuple) or not _is_short(axes):
            return _one_or_more(layout.get("shape"))
        flat = (axis.get("shape") for axis in axes if isinstance(axis, PickledObject))
        return tuple(math.prod(_one_or_more(shape)) for shape in flat)
    return read_view(mesh.get("mesh")).shape


def _one_or_more(value: Any) -> tuple[int, ...]:
    return _numbers(value if isinstance(value, tuple) else (value,))


def _numbers(value: Any) -> tuple[int, ...]:
    if isinstance(value, PickledObject) and value.name == "torch.Size":
        value = value.args[0] if value.args else ()
    if not isinstance(value, tuple) or not _is_short(value):
        raise Unreadable("a tensor with an impossible shape")
    if not all(type(each) is int and 0 <= each < 1 << 62 for each in value):
        raise Unreadable("a tensor with an impossible shape")
    return value


def _is_short(value: Any) -> bool:
    """Whether it has no more items than a tensor has dimensions; many tensors may share it."""
    return isinstance(value, tuple | list) and len(value) <= _MAX_DIMENSIONS


def _dtype(value: Any) -> DType:
    name = value.text if isinstance(value, Name) else type(value).__name__
    if name not in _DTYPES:
        raise Unreadable(f"a tensor of the type {name}")
    return _DTYPES[name]
