"""Files whose pickles are valid and whose records are not: each is refused, and none ends in a traceback."""

import os
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
from crafted import InMemory, Place, archived, changed, changes, dump, places
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_files import FIXTURES, config_files, members, shard_path

from cloudrl.errors import CheckpointError
from cloudrl.shards.merge import plan_merge
from cloudrl.shards.pickled import Name, PickledObject
from cloudrl.shards.safe_pickle import read_pickle
from cloudrl.shards.shard import open_shard
from cloudrl.shards.source import MergeInputs, Sidecars
from cloudrl.shards.tensors import Unreadable, is_allowed, read_tensor
from cloudrl.shards.validate import verify

CASES = 5_000 if os.environ.get("CLOUDRL_SLOW") == "1" else 60
SAVES = [("torch-2.4.1/fsdp1", 2), ("torch-2.6.0/hsdp", 4), ("torch-2.13.0/fsdp2", 2)]
SHARDED, WHOLE = "lm_head.weight", "model.layers.0.self_attn.positions"


@cache
def content(save: tuple[str, int], rank: int) -> dict[str, bytes]:
    return members(shard_path(FIXTURES / save[0], rank, save[1]))


@cache
def state(save: tuple[str, int], rank: int) -> dict[str, Any]:
    found: dict[str, Any] = read_pickle(content(save, rank)["data.pkl"], is_allowed, "good")
    return found


@cache
def places_of(save: tuple[str, int], name: str) -> list[Place]:
    """The outer ones many times, since there are fewer of them."""
    found = list(places(state(save, 1)[name]))
    outer = [place for place in found if len(place) < 4]
    return found + outer * (1 + len(found) // len(outer))


def crafted(save: tuple[str, int], rank: int, name: str, place: Place, change: Callable[[Any], Any]) -> InMemory:
    """A rank's shard with one value within one tensor changed."""
    tensors = state(save, rank)
    return shard(save, rank, {**tensors, name: changed(tensors[name], place, change)})


@cache
def good(save: tuple[str, int], rank: int) -> InMemory:
    return shard(save, rank, state(save, rank))


def shard(save: tuple[str, int], rank: int, tensors: dict[str, Any]) -> InMemory:
    root = shard_path(FIXTURES, rank, save[1]).stem
    return InMemory(archived({**content(save, rank), "data.pkl": dump(tensors)}, root), f"{root}.pt")


@pytest.mark.parametrize("save", SAVES)
def test_what_is_written_again_unchanged_is_as_good(save: tuple[str, int]) -> None:
    shards = {rank: good(save, rank) for rank in (0, 1)}
    assert verify(MergeInputs(shards)).ok
    for rank, source in shards.items():
        again = read_pickle(open_shard(source, rank).archive.pickled(), is_allowed, "again")
        assert dump(again) == dump(state(save, rank))


@settings(max_examples=CASES)
@given(
    st.sampled_from(SAVES), st.sampled_from([SHARDED, SHARDED, WHOLE]), st.integers(0, 10_000), changes(),
    st.sampled_from([(1,), (0, 1)]),
)  # fmt: skip
def test_a_record_that_was_changed_in_one_place(
    save: tuple[str, int], name: str, number: int, change: Callable[[Any], Any], ranks: tuple[int, ...]
) -> None:
    found = places_of(save, name)
    place = found[number % len(found)]
    shards = {rank: crafted(save, rank, name, place, change) if rank in ranks else good(save, rank) for rank in (0, 1)}
    if verify(MergeInputs(shards)).ok:
        with suppress(CheckpointError):
            plan_merge(MergeInputs(shards, config_files()))


OFFSET, SIZE, STRIDES = 1, 2, 3


def plain(**changes: Any) -> PickledObject:
    """A tensor of five integers with something else in the place of an argument of its maker."""
    whole = state(SAVES[2], 1)[WHOLE]
    assert isinstance(whole, PickledObject)
    args = list(whole.args)
    for name, value in changes.items():
        args[{"offset": OFFSET, "size": SIZE, "strides": STRIDES}[name]] = value
    return PickledObject(whole.name, tuple(args))


def sharded(arguments: Any) -> PickledObject:
    """A DTensor with these arguments of its maker: the class, its type and its shape."""
    whole = state(SAVES[2], 1)[SHARDED]
    assert isinstance(whole, PickledObject)
    maker, kind, _, attributes = whole.args[:4]
    return PickledObject(whole.name, (maker, kind, arguments, attributes))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (plain(strides=(3, 1)), r"shape \(5,\) with the strides \(3, 1\)"),
        (plain(strides=()), r"shape \(5,\) with the strides \(\)"),
        (plain(size=(0, 5)), r"shape \(0, 5\) with the strides \(1,\)"),
        (plain(strides=(2,)), "with gaps"),
        (plain(size=(1,) * 100_000), "impossible shape"),
        (plain(size=5), "impossible shape"),
        (plain(offset=-1), "impossible shape"),
        (sharded(5), "a torch.*DTensor"),
        (sharded(None), "a torch.*DTensor"),
        (sharded({0: 1, 1: 2, 2: 3}), "a torch.*DTensor"),
        (sharded((Name("torch.int4"),) * 3), "a tensor of the type torch.int4"),
        (PickledObject("torch._utils._rebuild_tensor_v2", None), "a tensor of a form that torch does not write"),  # type: ignore[arg-type]
    ],
)
def test_what_it_is_instead_is_said(value: PickledObject, said: str) -> None:
    with pytest.raises(Unreadable, match=said):
        read_tensor(value)


def test_a_mesh_of_no_ranks() -> None:
    """Its shape is under another name in each release."""
    save = SAVES[2]
    meshes = [place for place in places_of(save, SHARDED) if "mesh" in str(place[-1:])]
    assert meshes
    for rank in (0, 1):
        empty = PickledObject("torch.distributed.device_mesh.DeviceMesh", ())
        empty.state = {"mesh_dim_names": ("fsdp",), "mesh": plain(size=(0,), strides=(1,))}
        source = crafted(save, rank, SHARDED, meshes[0], lambda _, new=empty: new)
        with pytest.raises(CheckpointError, match="mesh has an impossible shape"):
            open_shard(source, rank)


def test_a_run_of_more_ranks_than_there_can_be() -> None:
    """Each missing rank would be a finding."""
    tensors = {WHOLE: state(SAVES[2], 0)[WHOLE]}
    data = {**content(SAVES[2], 0), "data.pkl": dump(tensors)}
    (finding,) = verify(MergeInputs({0: InMemory(archived(data, "model_world_size_999999999_rank_0"))})).findings
    assert (finding.fatal, "from a run of 999999999 ranks" in finding.message) == (True, True)


@pytest.mark.parametrize("step", [float("inf"), float("nan"), 1 << 2000, "x", PickledObject("torch.Size", ())])
def test_the_step_of_an_optimizer_may_be_anything(step: Any) -> None:
    data = {"data.pkl": dump({"state": {0: {"step": step}}})}
    optim = InMemory(archived(data, "optim_world_size_2_rank_1"))
    shards = {rank: good(SAVES[2], rank) for rank in (0, 1)}
    report = verify(MergeInputs(shards, sidecars={1: Sidecars(optim=optim)}))
    assert report.ok
    assert report.step == (step if isinstance(step, int) else None)


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_other_protocols_than_torchs_own(protocol: int) -> None:
    """`torch.save(..., pickle_protocol=4)`: the same opcodes, and a few more."""
    save = SAVES[2]
    data = content(save, 0)["data.pkl"]
    assert data[:2] == b"\x80\x02"
    frame = b"" if protocol < 4 else b"\x95" + struct.pack("<Q", len(data) - 2)
    newer = {**content(save, 0), "data.pkl": b"\x80" + bytes([protocol]) + frame + data[2:]}
    root = shard_path(FIXTURES, 0, save[1]).stem
    opened = open_shard(InMemory(archived(newer, root), f"{root}.pt"), 0)
    assert opened.tensors == open_shard(good(save, 0), 0).tensors
