"""Every form in which torch pickles a plain tensor is read; nothing in it is run."""

import io
import os
import shutil
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from crafted import InMemory, archived, changed, changes, dump, places
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_files import FIXTURES, read_safetensors
from small_step import as_sft

from cloudrl.checkpoints.handle import Checkpoints
from cloudrl.checkpoints.sources import LocalSource
from cloudrl.errors import CheckpointError
from cloudrl.shards.pickled import Name, PickledObject, Storage
from cloudrl.shards.shard import open_shard
from cloudrl.shards.tensors import Tensor

ROOT = "model_world_size_1_rank_0"
CASES = 5_000 if os.environ.get("CLOUDRL_SLOW") == "1" else 150
VALUES = struct.pack("<6f", *range(6))
HOOKS = PickledObject("collections.OrderedDict", ())
V1, V2, V3 = (f"torch._utils._rebuild_tensor{each}" for each in ("", "_v2", "_v3"))
OF_TYPE, PARAMETER = "torch._tensor._rebuild_from_type_v2", "torch._utils._rebuild_parameter"
WITH_STATE = "torch._utils._rebuild_parameter_with_state"
FROM_CPU = "torch._utils._rebuild_device_tensor_from_cpu_tensor"
CLONED = {"_has_been_cloned": True}
STORAGE = (Storage("torch.FloatStorage", "0", 6), 0, (2, 3), (3, 1))
TENSOR = PickledObject(V2, (*STORAGE, False, HOOKS))


def attributed(args: tuple[Any, ...] = TENSOR.args, maker: str = V2, kind: str = "torch.Tensor", state: Any = CLONED):
    return PickledObject(OF_TYPE, (Name(maker), Name(kind), args, state))


FORMS = {
    "plain": TENSOR,
    "the first form": PickledObject(V1, STORAGE),
    "metadata without effect": PickledObject(V2, (*STORAGE, False, HOOKS, {"conj": False, "neg": False})),
    "attributes, as FSDP1 leaves them": attributed(),
    "attributes in slots": attributed(state=(CLONED, {"slot": 1})),
    "no attributes": attributed(state=None),
    "attributes and metadata": attributed((*STORAGE, False, HOOKS, {})),
    "a parameter by its class": attributed(kind="torch.nn.parameter.Parameter"),
    "a buffer": attributed(kind="torch.nn.parameter.Buffer"),
    "a parameter": PickledObject(PARAMETER, (TENSOR, True, HOOKS)),
    "a parameter with attributes": PickledObject(WITH_STATE, (TENSOR, True, HOOKS, CLONED)),
    "a parameter of a tensor with attributes": PickledObject(WITH_STATE, (attributed(), True, HOOKS, CLONED)),
    "a parameter's maker with attributes": attributed((TENSOR, True, HOOKS), maker=PARAMETER),
    "of another device": PickledObject(FROM_CPU, (TENSOR, Name("torch.float32"), "xla:0", False)),
    "of another device with attributes": attributed(
        (TENSOR, Name("torch.float32"), "xla:0", False), maker=FROM_CPU
    ),
    "with its type": PickledObject(
        V3, (Storage("torch.storage.UntypedStorage", "0", 24), *STORAGE[1:], False, HOOKS, Name("torch.float32"))
    ),
    "with its type and metadata": PickledObject(
        V3, (Storage("torch.storage.UntypedStorage", "0", 24), *STORAGE[1:], False, HOOKS, Name("torch.float32"), {})
    ),
}  # fmt: skip


def read(value: Any) -> Tensor:
    content = archived({"data.pkl": dump({"w": value}), "data/0": VALUES}, ROOT)
    return open_shard(InMemory(content), 0).tensors["w"]


@pytest.mark.parametrize("form", FORMS)
def test_it_is_the_same_tensor(form: str) -> None:
    assert read(FORMS[form]) == read(TENSOR)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (PickledObject(V2, (*STORAGE, False, HOOKS, {"neg": True})), "whose values are stored otherwise"),
        (attributed((*STORAGE, False, HOOKS, {"conj": True})), "whose values are stored otherwise"),
        (attributed(kind="mylib.Quantized"), "names mylib.Quantized"),
        (attributed(maker="os.system", args=("true",)), "names os.system"),
        (attributed(state={"hook": Name("os.system")}), "names os.system"),
        (attributed(state={"hook": PickledObject("builtins.eval", ("1",))}), "names builtins.eval"),
        (attributed(maker="torch.Tensor"), "w is a torch.Tensor"),
        (attributed(args=()), "w is a tensor without a storage"),
        (PickledObject(PARAMETER, ()), "w is a torch._utils._rebuild_parameter"),
        (PickledObject(PARAMETER, (1,)), "w is a int"),
        (PickledObject("torch.Tensor", STORAGE), "w is a torch.Tensor"),
    ],
)
def test_what_is_something_else_is_refused(value: Any, why: str) -> None:
    with pytest.raises(CheckpointError, match=why):
        read(value)


@settings(max_examples=CASES)
@given(st.sampled_from(sorted(FORMS)), st.integers(0, 10_000), changes())
def test_a_form_that_was_changed_in_one_place(form: str, number: int, change: Callable[[Any], Any]) -> None:
    """It is a tensor of which all is there, or refused."""
    found = list(places(FORMS[form]))
    with suppress(CheckpointError):
        tensor = read(changed(FORMS[form], found[number % len(found)], change))
        assert tensor.view.offset * tensor.view.dtype.size_bytes + tensor.view.size_bytes <= len(VALUES)


def test_wrappers_without_an_end_are_refused() -> None:
    value: Any = 1
    for _ in range(50):
        value = PickledObject(PARAMETER, (value, True, HOOKS))
    with pytest.raises(CheckpointError, match="w is a "):
        read(value)


def test_many_of_them_take_no_more_memory_than_plain_ones() -> None:
    def peak(record: PickledObject) -> int:
        count = 200
        each, place = dump(record)[2:-1], dump("0")[2:-1]
        named = (
            dump(f"model.layers.{number}.weight")[2:-1] + each.replace(place, dump(str(number))[2:-1])
            for number in range(count)
        )
        content = {f"data/{number}": VALUES for number in range(count)}
        data = archived({"data.pkl": b"\x80\x02}(" + b"".join(named) + b"u.", **content}, ROOT)
        tracemalloc.start()
        shard = open_shard(InMemory(data), 0)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(shard.tensors) == count
        return used

    assert peak(attributed()) < 1.3 * peak(TENSOR) + 500_000


@pytest.mark.parametrize("layout", ["rl", "sft"])
def test_a_save_of_one_rank_by_verls_manager(tmp_path: Path, layout: str) -> None:
    """verl 0.9.1, `strategy: fsdp`, one rank: 27 tensors with attributes."""
    step = tmp_path / "run" / "global_step_1"
    shutil.copytree(FIXTURES / "verl-0.9.1" / "fsdp1-one-rank", step / "actor")
    (step / "data.pt").write_bytes(b"data")
    if layout == "sft":
        as_sft(step)
    found = Checkpoints(LocalSource(tmp_path / "run")).latest()
    assert found.verify().ok
    found.merge(tmp_path / "model", dtype="keep")
    merged = read_safetensors(tmp_path / "model")
    with zipfile.ZipFile(next(step.rglob("model_*.pt"))) as archive:
        stored = {archive.read(each) for each in archive.namelist() if "/data/" in each}
    assert {content for _, _, content in merged.values()} <= stored


@pytest.mark.verl  # torch takes seconds to import
def test_as_torch_reads_it() -> None:
    import torch

    def with_attributes(tensor: Any) -> Any:
        tensor._has_been_cloned = True
        return tensor

    whole = torch.arange(6.0).reshape(2, 3)
    forms = [
        whole.clone(),
        with_attributes(whole.clone()),
        torch.nn.Parameter(whole.clone()),
        with_attributes(torch.nn.Parameter(whole.clone())),
        torch.nn.Buffer(whole.clone()),
        with_attributes(torch.nn.Buffer(whole.clone())),
        with_attributes(whole.clone().to(torch.bfloat16)),
        with_attributes(torch.arange(20.0)[6:12].reshape(2, 3)),
        with_attributes(torch.tensor(3.0)),
        with_attributes(torch.empty(0, 3)),
    ]
    buffer = io.BytesIO()
    torch.save({str(number): each for number, each in enumerate(forms)}, buffer)
    data = buffer.getvalue()
    shard = open_shard(InMemory(data), 0)
    for name, theirs in torch.load(io.BytesIO(data), weights_only=False).items():
        view = shard.tensors[name].view
        start = shard.offset(view)
        plain = theirs.detach().contiguous().as_subclass(torch.Tensor).reshape(-1).view(torch.uint8).numpy().tobytes()
        assert (shard.tensors[name].shape, data[start : start + view.size_bytes]) == (tuple(theirs.shape), plain)
