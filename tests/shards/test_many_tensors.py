"""What the tensors of many ranks take in memory: 18,867 tensors on 64 ranks are a million."""

import io
import re
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest
from crafted import InMemory, archived, dump
from shard_files import FIXTURES, members

from cloudrl.shards import copying
from cloudrl.shards.layout import check_together, read_layout
from cloudrl.shards.pickled import PickledObject, Storage
from cloudrl.shards.plan import make_outputs
from cloudrl.shards.progress import Meter, silent
from cloudrl.shards.safe_pickle import read_pickle
from cloudrl.shards.shard import Shard, open_shard
from cloudrl.shards.tensors import is_allowed

RANKS, TENSORS = 8, 250
FSDP2 = FIXTURES / "torch-2.13.0" / "fsdp2" / "model_world_size_2_rank_0.pt"


def shard_bytes(rank: int, ranks: int = RANKS, tensors: int = TENSORS) -> bytes:
    """A shard with one row for this rank of each of many tensors, made from one that torch has saved."""
    record = next(iter(read_pickle(members(FSDP2)["data.pkl"], is_allowed, "x.pt").values()))
    assert isinstance(record, PickledObject)
    maker, kind, args, state = record.args
    attributes = state[1]
    local = attributes["_local_tensor"]
    local.args = (Storage("torch.FloatStorage", "KEY", 2), 0, (1, 2), (2, 1), *local.args[4:])
    mesh = attributes["_spec"].state["mesh"].state
    mesh["_layout"].state["axes"][0].state["shape"] = (ranks,)
    mesh["_rank"], mesh["_coordinate_on_dim"] = rank, (rank,)
    record.args = (maker, kind, (args[0], args[1], (ranks, 2), (2, 1), *args[4:]), state)
    each, place = dump(record)[2:-1], dump("KEY")[2:-1]
    named = (
        dump(f"model.layers.{number}.weight")[2:-1] + each.replace(place, dump(str(number))[2:-1])
        for number in range(tensors)
    )
    content = {f"data/{number}": struct.pack("<2f", rank, number) for number in range(tensors)}
    pickled = b"\x80\x02}(" + b"".join(named) + b"u."
    return archived({"data.pkl": pickled, **content}, f"model_world_size_{ranks}_rank_{rank}")


@pytest.fixture(scope="module")
def files() -> list[bytes]:
    return [shard_bytes(rank) for rank in range(RANKS)]


def zipped(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {info.filename.partition("/")[2]: archive.read(info) for info in archive.infolist()}


def opened(files: list[bytes], known: dict[Any, Any]) -> dict[int, Shard]:
    return {rank: open_shard(InMemory(data, f"rank {rank}"), rank, known) for rank, data in enumerate(files)}


def test_a_rank_takes_few_bytes_for_a_tensor(files: list[bytes]) -> None:
    known: dict[Any, Any] = {}
    shards = opened(files[:-1], known)
    tracemalloc.start()
    try:
        shards[RANKS - 1] = open_shard(InMemory(files[-1]), RANKS - 1, known)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept / TENSORS < 64  # with what a rank takes by itself
    assert peak / TENSORS < 5000  # with its pickle, in which each tensor has 1,380 bytes
    assert not list(check_together(shards, read_layout(list(shards.values()), RANKS)))


def test_a_plan_takes_few_bytes_for_a_piece(files: list[bytes]) -> None:
    shards = list(opened(files, {}).values())
    tracemalloc.start()
    try:
        outputs = make_outputs(shards, None)
        assert tracemalloc.get_traced_memory()[1] / (RANKS * TENSORS) < 64
        assert sum(len(list(output.pieces)) for output in outputs) == RANKS * TENSORS
        assert tracemalloc.get_traced_memory()[0] / (RANKS * TENSORS) < 64
    finally:
        tracemalloc.stop()


def test_tasks_are_made_when_they_are_taken(files: list[bytes], tmp_path: Path) -> None:
    shards = list(opened(files, {}).values())
    outputs = make_outputs(shards, None)
    path = tmp_path / "model"
    path.write_bytes(bytes(sum(output.size_bytes for output in outputs)))
    with path.open("r+b") as file:
        copying.copy([copying.Target(file.fileno(), outputs[:1], 0)], Meter(0, silent))  # imports what it needs
        tracemalloc.start()
        try:
            copying.copy([copying.Target(file.fileno(), outputs, 0)], Meter(0, silent))
            assert tracemalloc.get_traced_memory()[1] < 200_000  # so many pieces would take 100 bytes each at least
        finally:
            tracemalloc.stop()
    wanted = [(rank, number) for number in range(TENSORS) for rank in range(RANKS)]
    assert path.read_bytes() == b"".join(struct.pack("<2f", *each) for each in wanted)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b"\x8a\x01\x08\x8a\x01\x02t", b"\x8a\x01\x09\x8a\x01\x02t", r"its shape is \(9, 2\) here and \(8, 2\) on"),
        (b"layers.249.", b"layers.250.", r"2 tensors are on one of the ranks 0 and 5 only: model.layers.249.weight"),
    ],
)
def test_one_tensor_of_one_rank_is_another(files: list[bytes], old: bytes, new: bytes, problem: str) -> None:
    content = zipped(files[5])
    at = content["data.pkl"].rindex(old)
    content["data.pkl"] = content["data.pkl"][:at] + new + content["data.pkl"][at + len(old) :]
    changed = [*files]
    changed[5] = archived(content, f"model_world_size_{RANKS}_rank_5")
    shards = opened(changed, {})
    (finding,) = check_together(shards, read_layout(list(shards.values()), RANKS))
    assert finding.rank == 5
    assert re.search(problem, finding.message)
