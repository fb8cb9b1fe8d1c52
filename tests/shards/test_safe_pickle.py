"""Pickles that would run code, and files that are not pickles."""

import os
import pickle
import pickletools
import struct
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_files import FIXTURES, edit, members, merge_role, shard_path, write_members

from cloudrl.errors import CheckpointError
from cloudrl.shards.pickled import Name, PickledObject, Storage
from cloudrl.shards.safe_pickle import read_pickle
from cloudrl.shards.shard import open_shard
from cloudrl.shards.source import LocalShard
from cloudrl.shards.tensors import is_allowed, tensor_makers
from cloudrl.shards.torch_zip import open_archive

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def read(data: bytes) -> Any:
    return read_pickle(data, is_allowed, "x.pt")


@given(PLAIN)
def test_plain_data_come_back(value: Any) -> None:
    assert read(pickle.dumps(value, protocol=2)) == value


def test_one_that_is_cut_off_is_told_as_that() -> None:
    data = pickle.dumps([1, 1000, -5, 2**70, 0.5, "text", (), (1,), {"a": [True, None]}], protocol=2)
    for end in range(2, len(data)):
        with pytest.raises(CheckpointError, match="it is cut off"):
            read(data[:end])


def test_what_stands_twice_is_read_once() -> None:
    inner = [1]
    found = read(pickle.dumps([inner, inner], protocol=2))
    assert found[0] is found[1]


def test_calls_become_records() -> None:
    data = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\0K\1\x85R}X\1\0\0\0aK\2sb."
    record = read(data)
    assert isinstance(record, PickledObject)
    assert (record.name, record.args, record.get("a")) == ("torch._utils._rebuild_tensor_v2", (1,), 2)


def test_storages_and_names() -> None:
    data = b"\x80\x02(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpuK\5tQ."
    assert read(data) == Storage("torch.FloatStorage", "0", 5)
    assert read(b"\x80\x02ctorch\nfloat32\n.") == Name("torch.float32")


class Evil:
    """What torch.load would call."""

    def __init__(self, how: Any, *what: Any) -> None:
        self._how, self._what = how, what

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._how, self._what


def hostile(canary: Path) -> list[bytes]:
    touch = f"open({str(canary)!r}, 'w')"
    values = [Evil(os.system, f"touch {canary}"), Evil(eval, touch), Evil(exec, touch), Evil(open, str(canary), "w")]
    plain = [pickle.dumps({"a": value}, protocol=protocol) for value in values for protocol in range(6)]
    command = f"touch {canary}".encode()
    string = b"X" + struct.pack("<I", len(command)) + command
    return [
        *plain,
        b"\x80\x02(" + string + b"ios\nsystem\n.",  # INST
        b"\x80\x02(cos\nsystem\n" + string + b"o.",  # OBJ
        b"\x80\x02cos\nsystem\n" + string + b"\x85\x81.",  # NEWOBJ
        b"\x80\x02\x8c\2os\x8c\6system\x93" + string + b"\x85R.",  # STACK_GLOBAL
        b"\x80\x02ctorch.distributed.tensor\n_api.os.system\n" + string + b"\x85R.",  # a dotted way out of torch
        b"\x80\x02ctorch.distributed.tensor.os\nsystem\n" + string + b"\x85R.",
        b"\x80\x02cnumpy.testing._private.utils\nrunstring\n(" + string + b"}tR.",
        b"\x80\x02ctorch.utils.cpp_extension\nload_inline\n" + string + b"\x85R.",
        b"\x80\x02\x82\1.",  # EXT1
    ]


def test_hostile_pickles_run_nothing_and_write_nothing(actor: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    for data in hostile(canary):

        def change(content: dict[str, bytes], data: bytes = data) -> None:
            content["data.pkl"] = data

        edit(shard_path(actor, 1), change)
        with pytest.raises(CheckpointError):
            merge_role(actor, tmp_path / "model")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step_1"]


def test_sharded_tensors_are_refused_by_name(actor: Path, tmp_path: Path) -> None:
    kind = b"ctorch.distributed._shard.sharded_tensor.api\nShardedTensor\n)\x81}b"
    data = b"\x80\x02}X\1\0\0\0a" + kind + b"s."
    edit(shard_path(actor, 1), lambda content: content.update({"data.pkl": data}))
    with pytest.raises(CheckpointError, match=r"a is a .*\.ShardedTensor, which cloudrl cannot merge"):
        merge_role(actor, tmp_path / "model")


def test_the_name_is_said() -> None:
    with pytest.raises(CheckpointError, match=r"names posix\.system") as caught:
        read(pickle.dumps(Evil(os.system, "true"), protocol=2))
    assert "Take a copy that you trust" in str(caught.value.hint)


def test_a_few_bytes_cannot_ask_for_much_memory_or_time() -> None:
    nested = b"\x80\x02}K\1\x85q\0" + b"h\0\x86q\0" * 60 + b"K\1s."
    assert isinstance(read(nested), dict)  # a key whose hash would take 2**60 steps
    for huge in (b"\x80\x02]r\xff\xff\xff\xff.", b"\x80\x02X\xff\xff\xff\xff.", b"\x80\x02\x8b\xff\xff\xff\x7f."):
        with suppress(CheckpointError):
            assert read(huge) == []


BOMBS = {
    "lists": b"]" * 700_000,
    "dicts": b"}" * 700_000,
    "memo": b"]" + b"".join(b"r" + struct.pack("<I", index) for index in range(300_000)),
    "objects": b"ctorch\nSize\nq\0" + b"h\0)R" * 170_000,
    "tuples": b"K\1" + b"\x85" * 700_000,
    "text": b"X" + struct.pack("<I", 64 << 20) + b"\xf0\x9f\x98\x80" * (16 << 20),
    "numbers": b"M\xff\xff" * (22 << 20),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_before_they_take_memory(actor: Path, name: str) -> None:
    """Each would be 64 bytes and more for a byte of its file."""
    edit(shard_path(actor, 1), lambda content: content.update({"data.pkl": b"\x80\x02" + BOMBS[name] + b"."}))
    tracemalloc.start()
    try:
        with pytest.raises(
            CheckpointError, match=r"more than \d+ bytes of memory|data\.pkl has \d+ bytes, and \d+ is the most"
        ):
            open_shard(LocalShard(shard_path(actor, 1)), 1)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


VIEW_OF = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpuK\5tQK\0K\1\x85K\1\x85"
VIEWED = b"ctorch._utils\n_rebuild_tensor_v2\n(%s" + VIEW_OF + b"tR"
BIG = b"X" + struct.pack("<I", 5000) + b"a" * 5000


def read_shard(data: bytes, max_bytes: int) -> Any:
    return read_pickle(data, is_allowed, "x.pt", max_bytes=max_bytes, makers=tensor_makers({}))


def test_a_record_is_free_once_it_is_a_tensor() -> None:
    """Some 300 bytes are left of 5,000; what is asked for again takes a sixth of the pickle."""
    waste = BIG + b"0"
    data = b"\x80\x02](" + (VIEWED % waste) * 500 + b"e."
    tracemalloc.start()
    try:
        assert len(read_shard(data, 700_000)) == 500
        assert tracemalloc.get_traced_memory()[1] < 700_000
    finally:
        tracemalloc.stop()


STAYING = {
    "on the stack below": (b"", BIG + VIEWED % b""),
    "remembered": (b"", VIEWED % (BIG + b"r%s0")),
    "in an older list": (b"]q\0", VIEWED % (b"h\0" + BIG + b"a0")),
    "in an older dict": (b"}q\0", VIEWED % (b"h\0" + b"M%s" + BIG + b"s0")),
    "in an older record": (b"", b"ctorch\nSize\n)Rr%s" + VIEWED % (b"j%s" + BIG + b"b0")),
    "in a list of a record around it": (
        b"", b"ctorch._utils\n_rebuild_tensor_v2\n]r%s" + VIEWED % (b"j%s" + BIG + b"a0")
    ),
    "of a record that was given up": (b"", b"ctorch._utils\n_rebuild_tensor_v2\n0" + BIG + b"K\1" + VIEWED % b""),
}  # fmt: skip


@pytest.mark.parametrize("name", STAYING)
def test_what_a_record_leaves_behind_counts(name: str) -> None:
    """Where something stays in memory after its record was made a tensor."""
    before, each = STAYING[name]
    parts = []
    for number in range(1000):
        index = struct.pack("<I", number + (1 if b"q\0" in before else 0))
        key = struct.pack("<H", number)
        parts.append(each.replace(b"M%s", b"M" + key).replace(b"%s", index))
    later = b"".join(b"j" + struct.pack("<I", number) for number in range(1001))  # all are asked for again
    data = b"\x80\x02" + before + b"".join(parts) + later + b"."
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="more than 1000000 bytes of memory"):
            read_shard(data, 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 1_700_000
    finally:
        tracemalloc.stop()


MANY = range(50_000)
GROWING = {
    "lists": b"]" * 50_000,
    "dicts": b"}" * 50_000,
    "tuples": b"N" + b"\x85" * 50_000,
    "records": b"ctorch\nSize\nq\0" + b"h\0)R" * 25_000,
    "storages": b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpuK\5tq\0" + b"h\0Q" * 25_000,
    "numbers": b"M\xff\xff" * 50_000,
    "long numbers": (b"\x8a\xff" + b"\x7f" * 255) * 5_000,
    "fractions": b"G\x3f\xf0\0\0\0\0\0\1" * 50_000,
    "texts": b"X\4\0\0\0\xf0\x9f\x98\x80" * 50_000,
    "items": b"](" + b"N" * 50_000 + b"e",
    "item after item": b"]" + b"Na" * 50_000,
    "keys": b"}(" + b"".join(b"J" + struct.pack("<i", 1000 + index) + b"N" for index in MANY) + b"u",
    "key after key": b"}" + b"".join(b"J" + struct.pack("<i", 1000 + index) + b"Ns" for index in MANY),
    "odd keys": b"}" + b")Ns" * 50_000,
    "memo": b"]" + b"".join(b"r" + struct.pack("<I", index) for index in MANY),
    "names": b"".join(b"ctorch.distributed._shard.\n%d\n" % index for index in MANY),
    "long names": b"ctorch.distributed._shard.\n" + b"a" * 1_000_000 + b"\n",
}


@pytest.mark.parametrize("name", GROWING)
def test_what_a_pickle_takes_is_known_while_it_is_read(name: str) -> None:
    """Within half as much again."""
    data = b"\x80\x02" + GROWING[name] + b"."
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=r"more than 250000 bytes of memory|more than 1000 names|cut off"):
            read_pickle(data, is_allowed, "x.pt", max_bytes=250_000)
        assert tracemalloc.get_traced_memory()[1] < 375_000
    finally:
        tracemalloc.stop()


def test_a_zip_file_of_nothing_but_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudrl.shards.torch_zip._MAX_MEMBERS", 3)
    write_members(tmp_path / "x.pt", {"data.pkl": b"\x80\x02N.", **{f"data/{index}": b"" for index in range(3)}})
    with pytest.raises(CheckpointError, match="more than 3 members"):
        open_archive(LocalShard(tmp_path / "x.pt"))


@pytest.mark.parametrize("path", sorted(FIXTURES.rglob("*.pt")), ids=lambda path: "-".join(path.parts[-3:]))
def test_a_shard_of_any_size_stays_far_below_the_limits(path: Path) -> None:
    """As if it had so many tensors that what stands beside them does not count."""
    content = members(path)
    assert 4096 * len(content) > 8 * len(content["data.pkl"])
    read_pickle(content["data.pkl"], is_allowed, "x.pt", max_bytes=10240 * len(content) // 3)


def test_what_many_tensors_share_is_looked_at_once() -> None:
    """A tuple of a million states or dimensions, and a million tensors that name it."""
    record = PickledObject("torch.distributed.tensor.DTensor", ())
    record.state = ({"a": 1},) * 1_000_000
    start = time.process_time()
    for _ in range(1000):
        assert record.get("b") is None
    assert time.process_time() - start < 1


DEEP = 100_000
PARAMETERS = b"h\0" * DEEP + b"N" + b"\x85R" * (DEEP + 1)
DEEP_TUPLE = b")" + b"\x85" * DEEP
NAMED = b"ctorch._utils\n_rebuild_parameter\nq\0"
VIEW = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpuK\5tQK\0K\1\x85K\1\x85"


@pytest.mark.parametrize(
    "value",
    [
        NAMED + PARAMETERS,
        b"ctorch._utils\n_rebuild_tensor_v3\n(" + VIEW + b"\x89)" + DEEP_TUPLE + b"tR",
        b"ctorch._tensor\n_rebuild_from_type_v2\n(N" + DEEP_TUPLE + b"))tR",
        b"(" + DEEP_TUPLE + b"NNNNtQ",
        NAMED + DEEP_TUPLE + b"\x85R",
    ],
)
def test_deep_nests_are_refused(actor: Path, tmp_path: Path, value: bytes) -> None:
    data = b"\x80\x02}X\1\0\0\0a" + value + b"s."
    edit(shard_path(actor, 1), lambda content: content.update({"data.pkl": data}))
    with pytest.raises(CheckpointError, match=r"cannot merge|is not what torch writes"):
        merge_role(actor, tmp_path / "model")


@given(st.binary(max_size=200))
def test_any_bytes_end_well(data: bytes) -> None:
    with suppress(CheckpointError):
        read(b"\x80\x02" + data)


OPCODES = [opcode.code.encode("latin1") for opcode in pickletools.opcodes]


@given(st.lists(st.sampled_from([*OPCODES, b"\0", b"\1", b"os\n", b"torch\n", b"Size\n"]), max_size=60))
def test_any_opcodes_end_well(codes: list[bytes]) -> None:
    test_any_bytes_end_well.hypothesis.inner_test(b"".join(codes))
