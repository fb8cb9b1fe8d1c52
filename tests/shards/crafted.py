"""Pickles as an attacker would craft them: read from a good file, changed in one place, and written again."""

import copy
import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from cloudrl.errors import CheckpointError
from cloudrl.shards.pickled import Name, PickledObject, Storage
from cloudrl.shards.source import ShardSource

Place = tuple[Any, ...]
"""How to get from a value to one within it: ("args", 2), ("state", "_spec"), 0, "key", ..."""


def dump(value: Any) -> bytes:
    """The pickle of protocol 2 that `read_pickle` reads as this value."""
    return b"\x80\x02" + _dump(value) + b"."


def _dump(value: Any) -> bytes:  # noqa: C901, PLR0911  a case for each type
    match value:
        case None | True | False:
            return {None: b"N", True: b"\x88", False: b"\x89"}[value]
        case int():
            data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            return b"\x8a" + bytes([len(data)]) + data
        case float():
            return b"G" + struct.pack(">d", value)
        case str():
            data = value.encode("utf-8", "surrogatepass")
            return b"X" + struct.pack("<I", len(data)) + data
        case tuple():
            return b"(" + b"".join(map(_dump, value)) + b"t"
        case list():
            return b"](" + b"".join(map(_dump, value)) + b"e"
        case dict():
            return b"}(" + b"".join(_dump(key) + _dump(item) for key, item in value.items()) + b"u"
        case Name(text):
            module, _, name = text.rpartition(".")
            return f"c{module}\n{name}\n".encode()
        case Storage(kind, key, elements):
            return _dump(("storage", Name(kind), key, "cpu", elements)) + b"Q"
        case PickledObject():
            state = b"" if value.state is None else _dump(value.state) + b"b"
            return _dump(Name(value.name)) + _dump(value.args) + b"R" + state
    raise TypeError(value)


def places(value: Any, here: Place = ()) -> Iterator[Place]:
    """Every value within a value, and itself."""
    yield here
    if isinstance(value, PickledObject):
        yield from places(value.args, (*here, "args"))
        yield from places(value.state, (*here, "state"))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*here, ("key", key)))
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from places(item, (*here, ("at", index)))


def changed(value: Any, place: Place, change: Callable[[Any], Any]) -> Any:
    """The same with one of the values within it changed; what other places share with it stays as it is."""
    if not place:
        return change(value)
    step, rest = place[0], place[1:]
    if isinstance(value, PickledObject):
        new = copy.copy(value)
        setattr(new, step, changed(getattr(value, step), rest, change))
        return new
    if isinstance(value, dict):
        return {**value, step[1]: changed(value[step[1]], rest, change)}
    items = list(value)
    items[step[1]] = changed(items[step[1]], rest, change)
    return type(value)(items)


NUMBERS = st.integers(-2, 9) | st.sampled_from([1 << 31, 1 << 40, (1 << 62) - 1, 1 << 62, -(1 << 63), 1 << 500])
NAMES = st.sampled_from(
    [
        "torch.float32", "torch.int4", "torch.Size", "torch.FloatStorage", "torch.device", "builtins.set",
        "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3", "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_tensor", "torch._utils._rebuild_parameter_with_state", "torch.Tensor",
        "torch._utils._rebuild_device_tensor_from_cpu_tensor", "torch.nn.parameter.Parameter",
        "torch._tensor._rebuild_from_type_v2", "torch._utils._rebuild_wrapper_subclass",
        "torch.distributed.tensor.DTensor", "torch.distributed.tensor.placement_types.Shard",
        "torch.distributed.device_mesh.DeviceMesh",
    ]
)  # fmt: skip
LEAVES = (
    st.none() | st.booleans() | NUMBERS | st.floats() | st.text(max_size=3) | NAMES.map(Name)
    | st.builds(Storage, st.just("torch.FloatStorage"), st.sampled_from(["0", "99", ""]), NUMBERS)
)  # fmt: skip
SHAPES = st.lists(NUMBERS, max_size=4).map(tuple)
VALUES = LEAVES | SHAPES | st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple)
    | st.dictionaries(st.sampled_from(["_spec", "dim", "shape", "x"]), inner, max_size=3)
    | st.builds(PickledObject, NAMES, st.lists(inner, max_size=5).map(tuple)),
    max_leaves=8,
)  # fmt: skip


@st.composite
def changes(draw: st.DrawFn) -> Callable[[Any], Any]:
    """Another value, or the same with one item more, one less, or none."""
    how, new = draw(st.sampled_from(["longer", "shorter", "empty", "other", "other", "other"])), draw(VALUES)

    def change(value: Any) -> Any:
        if not isinstance(value, (tuple, list)) or how == "other":
            return new
        return {"longer": type(value)([*value, *value[-1:]]), "shorter": value[:-1], "empty": value[:0]}[how]

    return change


def archived(content: Mapping[str, bytes], root: str) -> bytes:
    """A torch file; CRCs are right."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in content.items():
            archive.writestr(f"{root}/{name}", data)
    return file.getvalue()


class InMemory(ShardSource):
    """Bytes as a file of a checkpoint."""

    def __init__(self, data: bytes, label: str = "x.pt") -> None:
        self.label, self._data = label, data

    def size_bytes(self) -> int:
        return len(self._data)

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > len(self._data):
            raise CheckpointError(f"{self.label} is cut off")
        return self._data[offset : offset + length]

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read(*each) for each in ranges]

    def crc32(self, offset: int, length: int) -> int:
        return zlib.crc32(self.read(offset, length))
