"""DTensors as each torch writes them, made anew: for the shards of one rank of FSDP1, which have none.

FSDP1 over one rank is NO_SHARD, and saves whole tensors with the attribute `_has_been_cloned` (torch 2.13,
distributed/fsdp/_state_dict_utils.py, `_common_unshard_post_state_dict_hook`); over several it loads nothing but
DTensors. Their process group is the default one, which has the name "0" (torch 2.13, distributed/device_mesh.py,
`_init_process_groups`; distributed/distributed_c10d.py, `_process_group_name`).
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudrl.shards.dtypes import DType
from cloudrl.shards.mesh_records import AddStorage
from cloudrl.shards.pickled import Name, PickledDict, PickledObject, Storage
from cloudrl.shards.tensor_records import storage_of, strides_of
from cloudrl.shards.tensors import OF_TYPE, TENSOR, WRAPPER

_NEW, _OLD = "torch.distributed.tensor.", "torch.distributed._tensor."
_NAMES, _GROUP = ("fsdp",), "0"
_CLONED = "_has_been_cloned"


def is_parameter(record: Any) -> bool:
    """Whether FSDP1 has marked a whole tensor as one of its parameters; buffers have no mark."""
    if not isinstance(record, PickledObject) or record.name != OF_TYPE or len(record.args) < 4:
        return False
    state = record.args[3]
    return any(isinstance(part, dict) and _CLONED in part for part in (state if isinstance(state, tuple) else (state,)))


def as_parameter(record: PickledObject) -> PickledObject:
    """A whole tensor with that mark."""
    return PickledObject(OF_TYPE, (Name(record.name), Name("torch.Tensor"), record.args, {_CLONED: True}))


def _made(name: str, state: Any = None, args: tuple[Any, ...] = ()) -> PickledObject:
    """The record of an object that `__new__` makes."""
    record = PickledObject(name, args, is_new=True)
    record.state = state
    return record


@dataclass(frozen=True)
class NewCut:
    """What DTensors of one rank have in common, in the form of one version of torch.

    Attributes:
        torch: Major and minor version; one of those in `FORMS`.
        world_size: Ranks.
        rank: Which of them.
        add_storage: Adds a storage to the file.
    """

    torch: tuple[int, int]
    world_size: int
    rank: int
    add_storage: AddStorage
    _shared: dict[str, Any] = field(default_factory=dict)
    """The mesh and the placements, which all tensors share."""

    def dtensor(self, local: PickledObject, shape: tuple[int, ...], dtype: DType) -> PickledObject:
        """A DTensor cut along its first dimension.

        Args:
            local: The part of this rank.
            shape: Of the whole.
            dtype: Of its elements.
        """
        storage, form = storage_of(local), FORMS[self.torch]
        kind, _, number = storage.device.partition(":")
        device = PickledObject("torch.device", (kind, int(number)) if number.isdecimal() else (kind,))
        element = Name(f"torch.{dtype.value}")
        if not self._shared:
            self._shared.update(mesh=self._mesh(kind), placements=(_made(form.shard, {"dim": 0}),))
        size = PickledObject("torch.Size", (shape,))
        spec = _made(form.spec, {
            "mesh": self._shared["mesh"], "placements": self._shared["placements"],
            "tensor_meta": _made(form.meta, args=(size, strides_of(shape), element)),
            **form.more(), "_hash": None,
        })  # fmt: skip
        layout = PickledObject("torch.serialization._get_layout", ("torch.strided",))
        about = (Name(form.dtensor), element, shape, strides_of(shape), 0, layout, device, False)
        state = (None, {"_local_tensor": local, "_spec": spec})
        return PickledObject(OF_TYPE, (Name(WRAPPER), Name(form.dtensor), about, state))

    def _mesh(self, device: str) -> PickledObject:
        ranks = tuple(range(self.world_size))
        content = struct.pack(f"<{self.world_size}i", *ranks)
        storage = self.add_storage(Storage(DType.INT32.storage, "", 0), DType.INT32, content)
        tensor = PickledObject(
            TENSOR, (storage, 0, (self.world_size,), (1,), False, PickledDict("collections.OrderedDict", ()))
        )
        return _made(
            "torch.distributed.device_mesh.DeviceMesh", FORMS[self.torch].mesh(device, tensor, ranks, self.rank)
        )


_Mesh = Callable[[str, PickledObject, tuple[int, ...], int], dict[str, Any]]


@dataclass(frozen=True)
class Form:
    """The form of a DTensor in some versions of torch.

    Attributes:
        dtensor: Its class, as pickles name it.
        spec: That of its placement.
        meta: That of its shape, strides and type.
        shard: That of a cut.
        mesh: Makes the attributes of a mesh of device, tensor of ranks, ranks, and the rank that has it.
        more: What else is in `spec`.
    """

    dtensor: str
    spec: str
    meta: str
    shard: str
    mesh: _Mesh
    more: Callable[[], dict[str, Any]] = dict


def _old_mesh(groups: Callable[[tuple[int, ...]], dict[str, Any]]) -> _Mesh:
    """Up to torch 2.9."""

    def mesh(device: str, tensor: PickledObject, ranks: tuple[int, ...], rank: int) -> dict[str, Any]:
        return {
            "device_type": device, "mesh": tensor, "mesh_dim_names": _NAMES, "_flatten_mesh_list": ranks,
            "_thread_id": None, **groups(ranks), "_coordinate_on_dim": [rank], "_hash": None,
        }  # fmt: skip

    return mesh


def _new_mesh(layout: Callable[[int], PickledObject]) -> _Mesh:
    """From torch 2.10 on."""

    def mesh(device: str, tensor: PickledObject, ranks: tuple[int, ...], rank: int) -> dict[str, Any]:
        return {
            "_device_type": device, "_layout": layout(len(ranks)), "_rank_map": tensor, "_mesh_dim_names": _NAMES,
            "_root_mesh": None, "_flatten_rank_map": ranks, "_thread_id": None, "_flatten_mapping": {},
            "_dim_group_names": [_GROUP], "_rank": rank, "_coordinate_on_dim": (rank,), "_hash": None,
        }  # fmt: skip

    return mesh


def _one_layout(name: str) -> Callable[[int], PickledObject]:
    return lambda count: _made(f"torch.distributed._mesh_layout.{name}", {"shape": (count,), "stride": (1,)})


def _layout_of_axes(count: int) -> PickledObject:
    return _made("torch.distributed._mesh_layout._MeshLayout", {"axes": (_one_layout("_FlatLayout")(count),)})


def _order() -> dict[str, Any]:
    return {"shard_order": (_made(f"{_NEW}_dtensor_spec.ShardOrderEntry", args=(0, (0,))),)}


def _strided_order() -> dict[str, Any]:
    return {**_order(), "use_strided_shard_as_shard_order": False}


def _infos(ranks: tuple[int, ...]) -> dict[str, Any]:
    return {"_dim_group_infos": [(f"ptd:{_GROUP}", list(ranks), _GROUP)]}


def _group_names(_ranks: tuple[int, ...]) -> dict[str, Any]:
    return {"_dim_group_names": [_GROUP]}


def _infos_2_4(ranks: tuple[int, ...]) -> dict[str, Any]:
    return {"_parent_mesh": None, **_infos(ranks)}


_Names = tuple[str, str, str, str]
_2_4: _Names = (
    f"{_OLD}api.DTensor", f"{_OLD}placement_types.DTensorSpec", f"{_OLD}placement_types.TensorMeta",
    f"{_OLD}placement_types.Shard",
)  # fmt: skip
_SINCE: _Names = (
    f"{_NEW}DTensor", f"{_NEW}_dtensor_spec.DTensorSpec", f"{_NEW}_dtensor_spec.TensorMeta",
    f"{_NEW}placement_types.Shard",
)  # fmt: skip
_2_5 = Form(*_SINCE, _old_mesh(_infos))
_2_8 = Form(*_SINCE, _old_mesh(_group_names))
_2_10 = Form(*_SINCE, _new_mesh(_one_layout("_MeshLayout")), _order)
_2_11 = Form(*_SINCE, _new_mesh(_one_layout("_MeshLayout")), _strided_order)
FORMS: Mapping[tuple[int, int], Form] = {
    (2, 4): Form(*_2_4, _old_mesh(_infos_2_4)), (2, 5): _2_5, (2, 6): _2_5, (2, 7): _2_5, (2, 8): _2_8, (2, 9): _2_8,
    (2, 10): _2_10, (2, 11): _2_11, (2, 12): _2_11, (2, 13): Form(*_SINCE, _new_mesh(_layout_of_axes), _strided_order),
}  # fmt: skip
"""By major and minor version of torch; those of 2.4, 2.6, 2.8, 2.11 and 2.13 were compared with their files."""
