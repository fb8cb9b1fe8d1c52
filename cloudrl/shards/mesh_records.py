"""The device mesh of a DTensor, as a pickle has it, made that of another number of ranks.

Everything else of the pickle is kept, so a mesh stays of the form that its torch reads. A mesh with an attribute that
is not known here is refused. Source: torch 2.4 to 2.13, distributed/device_mesh.py, `DeviceMesh.__init__`.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cloudrl.shards.dtypes import DType
from cloudrl.shards.pickled import PickledObject, Storage
from cloudrl.shards.tensor_records import storage_of, with_view
from cloudrl.shards.tensors import Unreadable, read_view

_NAMES = ("fsdp",)
_NUMBERS = {DType.INT32: "i", DType.INT64: "q"}
AddStorage = Callable[[Storage, DType, bytes], Storage]
"""Takes one like it, the type and the bytes of a new storage; returns that."""


@dataclass(frozen=True)
class NewMesh:
    """What a mesh of one dimension becomes: that of `world_size` ranks as `rank` sees it."""

    world_size: int
    rank: int
    add_storage: AddStorage

    def resize(self, mesh: PickledObject) -> None:
        """Change the record of a mesh.

        Raises:
            Unreadable: It has replicas, or a form that is not known.
        """
        state = mesh.state
        if not isinstance(state, dict):
            raise Unreadable("a DTensor whose device mesh is of a form that is not known")
        for name, value in state.items():
            rule = _RULES.get(name)
            if rule is None:
                raise Unreadable(f"a DTensor whose device mesh has {name!r}, which is not known")
            state[name] = rule(self, value)

    @property
    def ranks(self) -> tuple[int, ...]:
        """All of them."""
        return tuple(range(self.world_size))

    def tensor(self, value: Any) -> PickledObject:
        """The tensor of all ranks."""
        view = read_view(value)
        if view.dtype not in _NUMBERS or len(view.shape) != 1:
            raise Unreadable(f"a DTensor whose device mesh has ranks of type {view.dtype.value} {view.shape}")
        content = struct.pack(f"<{self.world_size}{_NUMBERS[view.dtype]}", *self.ranks)
        storage = self.add_storage(storage_of(value), view.dtype, content)
        return with_view(value, storage, (self.world_size,))

    def layout(self, value: Any) -> Any:
        """`_MeshLayout`: how many ranks, and how far apart; in torch 2.13 by one `_FlatLayout` for each dimension."""
        state = _layout_state(value)
        if set(state) == {"axes"} and isinstance(state["axes"], tuple) and len(state["axes"]) == 1:
            flat = _layout_state(state["axes"][0])
            if flat.get("stride") in ((1,), ()):
                # it leaves dimensions of one rank out (torch 2.13, distributed/_mesh_layout.py, `_FlatLayout`)
                flat["shape"], flat["stride"] = ((self.world_size,), (1,)) if self.world_size > 1 else ((), ())
                return value
        elif set(state) == {"shape", "stride"} and state["stride"] in (1, (1,)):
            state["shape"] = self.world_size if isinstance(state["shape"], int) else (self.world_size,)
            return value
        raise Unreadable("a DTensor whose device mesh has a layout that is not known")

    def group_infos(self, value: Any) -> Any:
        """Of torch 2.4 to 2.7: (tag, ranks, name) of the group of each dimension."""
        if not isinstance(value, list) or not all(isinstance(each, tuple) and len(each) == 3 for each in value):
            raise Unreadable("a DTensor whose device mesh has groups of a form that is not known")
        return [(tag, list(self.ranks), name) for tag, _, name in value]


def _layout_state(value: Any) -> dict[Any, Any]:
    if not isinstance(value, PickledObject) or not isinstance(value.state, dict):
        raise Unreadable("a DTensor whose device mesh has no layout")
    return value.state


def _kept(_mesh: NewMesh, value: Any) -> Any:
    return value


def _without(_mesh: NewMesh, value: Any) -> Any:
    if value:
        raise Unreadable("a DTensor whose device mesh is a part of another one")
    return value


def _names(_mesh: NewMesh, value: Any) -> Any:
    if value is None or tuple(value) != _NAMES:
        raise Unreadable(f"a DTensor whose device mesh has the dimensions {value}, not {_NAMES}")
    return value


_RULES: Mapping[str, Callable[[NewMesh, Any], Any]] = {
    "device_type": _kept, "_device_type": _kept, "_thread_id": _kept, "_dim_group_names": _kept,
    "mesh_dim_names": _names, "_mesh_dim_names": _names,
    "_parent_mesh": _without, "_root_mesh": _without, "_flatten_mapping": _without,
    "mesh": NewMesh.tensor, "_rank_map": NewMesh.tensor,
    "_flatten_mesh_list": lambda mesh, _: mesh.ranks, "_flatten_rank_map": lambda mesh, _: mesh.ranks,
    "_layout": NewMesh.layout, "_dim_group_infos": NewMesh.group_infos,
    "_rank": lambda mesh, _: mesh.rank,
    "_coordinate_on_dim": lambda mesh, value: [mesh.rank] if isinstance(value, list) else (mesh.rank,),
    "_hash": lambda _mesh, _value: None,  # it is calculated when it is asked for
}  # fmt: skip
