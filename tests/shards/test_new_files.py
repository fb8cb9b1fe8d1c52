"""Torch files made of others: pickles, zips and sums, and the forms of each torch, without torch."""

import os
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_files import FIXTURES, shard_path

from cloudrl.errors import CheckpointError
from cloudrl.shards.crc_joining import join_crc32
from cloudrl.shards.dtypes import DType
from cloudrl.shards.new_dtensors import FORMS, NewCut
from cloudrl.shards.new_files import StorageList
from cloudrl.shards.pickle_writer import write_pickle
from cloudrl.shards.pickled import PickledDict, PickledObject, Storage
from cloudrl.shards.reshard import plan_reshard, write_shards
from cloudrl.shards.safe_pickle import read_pickle
from cloudrl.shards.shard import Shard, open_shard, read_records
from cloudrl.shards.source import LocalShard, MergeInputs
from cloudrl.shards.tensor_records import local_tensor
from cloudrl.shards.torch_zip import open_archive
from cloudrl.shards.torch_zip_writer import directory, lay_out, local_header

SAVES = {
    "torch-2.4.1/fsdp1": (2, 4), "torch-2.4.1/fsdp2": (2, 4), "torch-2.6.0/fsdp2": (2, 6), "torch-2.8.0/fsdp1": (2, 8),
    "torch-2.11.0-cuda/fsdp2": (2, 11), "torch-2.13.0/fsdp2": (2, 13),
}  # fmt: skip


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_two_sums_joined(first: bytes, second: bytes) -> None:
    assert join_crc32(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


def test_sums_of_long_pieces_joined() -> None:
    first, second = os.urandom(1000), bytes(10_000_001)
    assert join_crc32(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(st.text(max_size=3).filter("#".__ne__) | st.integers(), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(PLAIN)
def test_a_pickle_is_read_as_what_was_written(value: Any) -> None:
    data = write_pickle(value, lambda storage: storage, "x.pt")
    assert pickle.loads(data) == value
    assert read_pickle(data, lambda _: True, "x.pt") == value


def test_many_items_many_objects_and_what_is_shared() -> None:
    shared = [1]
    value = PickledDict("collections.OrderedDict", ())
    value.update({str(number): (number, shared) for number in range(2500)})
    value.state = {"_metadata": shared}
    again = pickle.loads(write_pickle(value, lambda storage: storage, "x.pt"))
    assert list(again) == list(value)
    assert again._metadata is again["0"][1] is again["2499"][1]


@pytest.mark.parametrize(
    ("value", "said"),
    [({(1, 2): 3}, "keys that are tuples"), ([b"x"], "it has a bytes"), ([[]], "nested too deeply")],
)
def test_what_cannot_be_written_again_is_said(value: Any, said: str) -> None:
    if value == [[]]:
        for _ in range(100_000):
            value = [value]
    elif value == {(1, 2): 3}:
        value = read_pickle(b"\x80\x02}K\1K\2\x86K\3s.", lambda _: True, "x.pt")
    with pytest.raises(CheckpointError, match=said):
        write_pickle(value, lambda storage: storage, "x.pt")
    while isinstance(value, list) and value:  # Python frees what is nested so deeply by recursion
        value = value[0]


def test_the_zip_is_laid_out_as_torch_does_it(tmp_path: Path) -> None:
    """Past 4 GB, too: a file with holes."""
    members = [("data.pkl", 5), ("data/0", (4 << 30) + 1), ("data/1", 0), ("data/2", 7), ("version", 2)]
    slots = lay_out("archive", members)
    assert all(slot.offset % 64 == 0 for slot in slots)
    path, content = tmp_path / "archive.pt", b"1234567"
    crcs = [zlib.crc32(content[:size]) if size < 8 else 0 for _, size in members]
    with path.open("wb") as file:
        for slot, crc in zip(slots, crcs, strict=True):
            file.seek(slot.header_at)
            file.write(local_header(slot, crc) + (content[: slot.size_bytes] if slot.size_bytes < 8 else b""))
        file.seek(slots[-1].offset + slots[-1].size_bytes)
        file.write(directory(slots, crcs))
    with zipfile.ZipFile(path) as archive:
        assert [(info.filename, info.file_size) for info in archive.infolist()] == [
            (f"archive/{name}", size) for name, size in members
        ]
        assert archive.read("archive/data/2") == content
    opened = open_archive(LocalShard(path)).members
    assert {name: (each.offset, each.size_bytes) for name, each in opened.items()} == {
        name: (slot.offset, slot.size_bytes) for (name, _), slot in zip(members, slots, strict=True)
    }


def shards(folder: Path, world_size: int) -> dict[int, Shard]:
    return {rank: open_shard(LocalShard(shard_path(folder, rank, world_size)), rank) for rank in range(world_size)}


def whole(found: dict[int, Shard]) -> dict[str, bytes]:
    """All bytes of each tensor that is cut, and those of rank 0 of others."""
    content = {}
    for name, tensor in found[0].tensors.items():
        having = found.values() if tensor.mesh is not None else [found[0]]
        parts = [(shard, shard.tensors.view(name)) for shard in having]
        content[name] = b"".join(
            shard.archive.source.read(shard.offset(view), view.size_bytes) for shard, view in parts
        )
    return content


def reshard(folder: Path, target: Path, old: int, new: int) -> dict[int, Shard]:
    inputs = MergeInputs({rank: LocalShard(shard_path(folder, rank, old)) for rank in range(old)})
    target.mkdir()
    write_shards(plan_reshard(inputs, new, fsdp_version=2), target)
    return shards(target, new)


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("new", [1, 3, 16])
def test_the_files_of_each_torch(save: str, new: int, tmp_path: Path) -> None:
    found = reshard(FIXTURES / save, tmp_path / "new", 2, new)
    assert whole(found) == whole(shards(FIXTURES / save, 2))
    for rank, shard in found.items():
        for name, tensor in shard.tensors.items():
            if tensor.mesh is not None:
                assert (tensor.mesh.shape, tensor.mesh.coordinate) == ((new,), (rank,)), name
    record = next(iter(read_records(found[new - 1].archive).values()))
    mesh = state_of(record)["mesh"]
    ranks = [mesh.get(name) for name in ("_flatten_mesh_list", "_flatten_rank_map")]
    assert tuple(range(new)) in ranks
    assert (mesh.get("_hash"), state_of(record)["_hash"]) == (None, None)
    back = reshard(tmp_path / "new", tmp_path / "back", new, 2)
    assert plain(read_records(back[1].archive)) == plain(read_records(shards(FIXTURES / save, 2)[1].archive))


def state_of(record: PickledObject) -> dict[str, Any]:
    state: dict[str, Any] = record.args[3][1]["_spec"].state
    return state


def plain(value: Any, key: Any = "") -> Any:
    """Records as plain data, without what names storages and what is calculated when it is asked for."""
    if isinstance(value, PickledObject):
        return value.name, value.is_new, plain(value.args), plain(value.state)
    if isinstance(value, Storage):
        return value.kind, value.device
    if isinstance(value, dict):
        return type(value).__name__, {name: plain(item, name) for name, item in value.items() if name != "_hash"}
    if isinstance(value, list | tuple):
        return type(value).__name__, [plain(item) for item in value]
    return "any" if key == "_thread_id" else value


@pytest.mark.parametrize(("save", "torch"), SAVES.items())
def test_a_dtensor_made_anew_is_that_of_torch(save: str, torch: tuple[int, int]) -> None:
    shard = shards(FIXTURES / save, 2)[1]
    name, record = next(iter(read_records(shard.archive).items()))
    tensor = shard.tensors[name]
    cut = NewCut(torch, 2, 1, lambda like, _dtype, _content: like)
    made = plain(cut.dtensor(local_tensor(record), tensor.shape, DType.FLOAT32))
    theirs = plain(record)
    if "cuda" in save:  # the group that it had there is not the default one
        theirs, made = (repr(each).replace("['1']", "['0']") for each in (theirs, made))
    assert made == theirs


def test_all_forms_are_known_from_the_first_torch_to_the_last() -> None:
    assert list(FORMS) == [(2, minor) for minor in range(4, 14)]


def test_a_storage_that_is_not_there() -> None:
    shard = shards(FIXTURES / "torch-2.13.0/fsdp2", 2)[0]
    value = PickledObject("torch._utils._rebuild_tensor_v2", (Storage("torch.FloatStorage", "99", 1), 0, (1,), (1,)))
    with pytest.raises(CheckpointError, match="lacks storage 99"):
        write_pickle(value, StorageList(shard.archive, 0).carry, "x.pt")
