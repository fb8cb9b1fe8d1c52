"""The file of one new rank: the pickle of an old one with other shapes, storages and device mesh."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cloudrl.errors import CheckpointError, InputError
from cloudrl.saves.names import shard_file
from cloudrl.shards.cutting import Cut, How, Table
from cloudrl.shards.dtypes import DType
from cloudrl.shards.mesh_records import NewMesh
from cloudrl.shards.new_dtensors import FORMS, NewCut, as_parameter, is_parameter
from cloudrl.shards.new_files import NewFile, StorageList
from cloudrl.shards.optimizer import state_values
from cloudrl.shards.pickle_writer import write_pickle
from cloudrl.shards.pickled import PickledObject, Storage
from cloudrl.shards.shard import Shard, read_records
from cloudrl.shards.tensor_records import local_tensor, set_local_tensor, spec_of, storage_of, with_view
from cloudrl.shards.tensors import Unreadable


@dataclass(frozen=True)
class Goal:
    """What new files are for.

    Attributes:
        world_size: Ranks that are going to load them.
        old_world_size: Ranks that saved the old ones.
        fsdp_version: 1 or 2.
        torch: Major and minor version of the torch that is going to load them, if known.
    """

    world_size: int
    old_world_size: int
    fsdp_version: int
    torch: tuple[int, int] | None = None

    @property
    def unwraps(self) -> bool:
        """Whether the new files have whole tensors and the old ones DTensors: FSDP1 does not shard over one rank."""
        return self.fsdp_version == 1 and self.world_size == 1

    @property
    def wraps(self) -> bool:
        """Whether the old files have whole tensors and the new ones DTensors."""
        return self.fsdp_version == 1 and self.old_world_size == 1

    def model_table(self, models: Mapping[int, Shard]) -> Table:
        """How the model is cut.

        Raises:
            InputError: The version of torch is needed.
            CheckpointError: Which tensors of a rank are parameters is not known.
        """
        if not self.wraps:
            return Table("model", models)
        self.known_torch()
        records = read_records(models[0].archive)
        uncut = frozenset(str(name) for name, record in records.items() if not is_parameter(record))
        if len(uncut) == len(records):
            raise CheckpointError(f"{models[0].label}: none of its tensors is marked as FSDP1 marks parameters")
        return Table("model", models, is_unwrapped=True, uncut=uncut)

    def known_torch(self) -> tuple[int, int]:
        """The version of the torch that loads the files.

        Raises:
            InputError: The version of torch is not given, or not known.
        """
        known = f"{min(FORMS)[0]}.{min(FORMS)[1]} to {max(FORMS)[0]}.{max(FORMS)[1]}"
        if self.torch is None:
            raise InputError(
                "one rank of FSDP1 saves whole tensors, and how the torch that resumes from it reads shards is unknown",
                hint="Name the version of that torch: --torch 2.11",
            )
        if self.torch not in FORMS:
            raise InputError(f"the shards of torch {self.torch[0]}.{self.torch[1]} are not known; {known} are")
        return self.torch


def new_file(table: Table, rank: int, goal: Goal) -> NewFile:
    """Decide what is in the file of a new rank.

    Raises:
        CheckpointError: The pickle of the old file has a form that is not known.
    """
    source_rank = rank % goal.old_world_size
    shard = table.shards[source_rank]
    storages = StorageList(shard.archive, source_rank)
    records = read_records(shard.archive)
    recorder = _Recorder(table, rank, goal, shard, storages)
    for name, holder, key in _places(table, records):
        if name in shard.tensors:
            try:
                holder[key] = recorder.recut(name, holder[key])
            except (Unreadable, KeyError, TypeError, AttributeError, ValueError, RecursionError) as why:
                raise CheckpointError(f"{shard.label}: {name} is {why}, which cloudrl cannot cut anew") from why
    root = shard_file(table.kind, goal.world_size, rank).removesuffix(".pt")
    return storages.file(root, write_pickle(records, storages.carry, shard.label))


def _places(table: Table, records: Any) -> Iterator[tuple[str, dict[Any, Any], Any]]:
    """Each tensor's name, and the dict and the key that have it."""
    if table.kind == "optim":
        yield from list(state_values(records))
    else:
        yield from [(key, records, key) for key in records if isinstance(key, str)]


@dataclass(frozen=True)
class _Recorder:
    """Changes the records of tensors for one new rank."""

    table: Table
    rank: int
    goal: Goal
    shard: Shard
    storages: StorageList
    _placed: dict[int, Any] = field(default_factory=dict)
    """Specs and meshes that were changed, by identity: many tensors have the same ones."""

    def recut(self, name: str, record: Any) -> Any:
        """The record of the part that the new rank has."""
        cut, is_cut = self.table.cut(name), self.shard.tensors[name].mesh is not None
        if is_cut and self.goal.unwraps:
            record = local_tensor(record)
        elif is_cut:
            self._place(spec_of(record))
        if cut.how is How.SAME:
            return record
        if is_cut and not self.goal.unwraps:
            set_local_tensor(record, self._part(name, cut, local_tensor(record)))
            return record
        part = self._part(name, cut, record)
        if is_cut:
            return as_parameter(part) if self.table.kind == "model" else part
        if self._new_cut is not None:
            return self._new_cut.dtensor(part, cut.shape, self.shard.tensors.view(name).dtype)
        return part

    def _part(self, name: str, cut: Cut, record: Any) -> PickledObject:
        dtype = self.shard.tensors.view(name).dtype
        part, parts = self.rank, self.goal.world_size
        shape = cut.part_shape(part, parts)
        storage = self.storages.add(
            storage_of(record), dtype, math.prod(shape) * dtype.size_bytes,
            runs=tuple(self.table.runs(name, cut, part, parts)), same=self.table.identity(name),
        )  # fmt: skip
        return with_view(record, storage, shape)

    def _place(self, spec: PickledObject) -> None:
        """Change how a DTensor is placed."""
        if id(spec) in self._placed:
            return
        self._placed[id(spec)] = spec
        if not isinstance(spec.state, dict):
            raise Unreadable("a DTensor whose placement is of a form that is not known")
        if "_hash" in spec.state:
            spec.state["_hash"] = None  # it is calculated when it is asked for
        mesh = spec.get("mesh")
        if id(mesh) not in self._placed:
            self._placed[id(mesh)] = mesh
            NewMesh(self.goal.world_size, self.rank, self._add).resize(mesh)

    @cached_property
    def _new_cut(self) -> NewCut | None:
        """What makes DTensors of whole tensors, if the old files have these."""
        if not self.table.is_unwrapped:
            return None
        return NewCut(self.goal.known_torch(), self.goal.world_size, self.rank, self._add)

    def _add(self, like: Storage, dtype: DType, content: bytes) -> Storage:
        return self.storages.add(like, dtype, len(content), literal=content)
