"""Cutting a tensor over ranks, along any dimension, and putting it together again."""

import itertools
import math
import os
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.errors import CheckpointError
from cloudrl.shards.copying import Target, copy
from cloudrl.shards.dtypes import DType
from cloudrl.shards.layout import Layout, check_together, part_range, part_shape, read_layout
from cloudrl.shards.plan import make_outputs, split_files
from cloudrl.shards.progress import Meter, silent
from cloudrl.shards.shard import Shard
from cloudrl.shards.source import LocalShard
from cloudrl.shards.tensor_table import TensorTable
from cloudrl.shards.tensors import Mesh, Placement, Tensor, View
from cloudrl.shards.torch_zip import Archive, Member, Members

NAME = "model.x"


def element(shape: tuple[int, ...], index: tuple[int, ...]) -> int:
    number = 0
    for size, at in zip(shape, index, strict=True):
        number = number * size + at
    return number


def part_bytes(shape: tuple[int, ...], dim: int, part: int, parts: int) -> bytes:
    """What `torch.chunk` gives one rank of the tensor 0, 1, 2, ..."""
    first, end = part_range(shape[dim], part, parts)
    ranges = [range(size) for size in shape]
    ranges[dim] = range(first, end)
    return b"".join(struct.pack("<i", element(shape, index)) for index in itertools.product(*ranges))


def shard(
    folder: Path, rank: int, shape: tuple[int, ...], placements: tuple[Placement, ...], mesh: Mesh | None, data: bytes,
    local: tuple[int, ...],
) -> Shard:  # fmt: skip
    path = folder / f"{rank}.pt"
    path.write_bytes(b"junk" + data + b"padding of FSDP2")
    stored = data + b"padding of FSDP2"
    archive = Archive(
        LocalShard(path), path.stem, Members.of({"data/0": Member(4, len(stored), zlib.crc32(stored))}), ""
    )
    tensor = Tensor(shape, View("0", DType.INT32, 0, local), mesh, placements)
    return Shard(rank, None, archive, TensorTable({NAME: tensor}, {}))


def shards(folder: Path, shape: tuple[int, ...], dim: int, parts: int) -> list[Shard]:
    mesh = Mesh(("fsdp",), (parts,), None)
    return [
        shard(
            folder, rank, shape, (Placement("Shard", dim),), mesh, part_bytes(shape, dim, rank, parts),
            part_shape(shape, dim, rank, parts),
        )
        for rank in range(parts)
    ]  # fmt: skip


def copied(folder: Path, parts: list[Shard]) -> bytes:
    outputs = make_outputs(parts, None)
    path = folder / "out"
    target = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        copy([Target(target, outputs, 3)], Meter(0, silent))
    finally:
        os.close(target)
    return path.read_bytes()[3:]


@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=3)
    .map(tuple)
    .flatmap(lambda shape: st.tuples(st.just(shape), st.integers(0, len(shape) - 1))),
    st.integers(1, 9),
)
def test_cut_and_put_together(shape_and_dim: tuple[tuple[int, ...], int], parts: int) -> None:
    import tempfile

    shape, dim = shape_and_dim
    with tempfile.TemporaryDirectory() as folder:
        cut = shards(Path(folder), shape, dim, parts)
        layout = read_layout(cut, None)
        assert layout == Layout(parts, parts)
        assert list(check_together(dict(enumerate(cut)), layout)) == []
        count = math.prod(shape)
        assert copied(Path(folder), cut) == struct.pack(f"<{count}i", *range(count))


def test_a_large_piece_goes_in_several_steps(tmp_path: Path) -> None:
    shape = (701, 3, 170)
    assert copied(tmp_path, shards(tmp_path, shape, 2, 2)) == struct.pack("<357510i", *range(357_510))


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        (Mesh(("fsdp", "tp"), (1, 1), None), "only FSDP and its replicas"),
        (Mesh((), (1,), None), "only FSDP and its replicas"),
        (Mesh(("ddp", "fsdp"), (1,), None), "only FSDP and its replicas"),
    ],
)
def test_other_meshes_are_refused(tmp_path: Path, mesh: Mesh, words: str) -> None:
    one = shard(tmp_path, 0, (2,), (Placement("Shard"),), mesh, b"12345678", (2,))
    with pytest.raises(CheckpointError, match=words):
        read_layout([one], None)


def test_plain_tensors_do_not_tell_the_size(tmp_path: Path) -> None:
    one = shard(tmp_path, 0, (2,), (), None, b"12345678", (2,))
    with pytest.raises(CheckpointError, match="how many ranks"):
        read_layout([one], None)
    assert read_layout([one], 8) == Layout(8, 1)


@pytest.mark.parametrize(
    ("placements", "local", "words"),
    [
        ((Placement("Partial"),), (2,), r"placed as \['Partial'\]"),
        ((Placement("_StridedShard"),), (1,), "not supported"),
        ((Placement("Shard", 1),), (1,), "cut along dimension 1 and has 1"),
        ((Placement("Shard", 0),), (2,), r"part 0 of 2 of \(2,\) has \(2,\), not \(1,\)"),
        ((), (2,), "not supported"),
    ],
)
def test_parts_that_do_not_fit(
    tmp_path: Path, placements: tuple[Placement, ...], local: tuple[int, ...], words: str
) -> None:
    import re

    one = shard(tmp_path, 0, (2,), placements, Mesh(("fsdp",), (2,), None), b"12345678", local)
    messages = [finding.message for finding in check_together({0: one}, Layout(2, 2)) if finding.fatal]
    assert any(re.search(words, message) for message in messages)


def test_ranks_that_contradict_each_other(tmp_path: Path) -> None:
    mesh = Mesh(("fsdp",), (2,), None)
    one = shard(tmp_path, 0, (2,), (Placement("Shard"),), mesh, b"1234", (1,))
    others = {
        "shape is (3,) here and (2,)": shard(tmp_path, 1, (3,), (Placement("Shard"),), mesh, b"1234", (1,)),
        "sharded on one rank and whole": shard(tmp_path, 1, (2,), (), None, b"12345678", (2,)),
        "placement is": shard(tmp_path, 1, (2,), (Placement("Replicate"),), mesh, b"12345678", (2,)),
    }
    for words, other in others.items():
        messages = [finding.message for finding in check_together({0: one, 1: other}, Layout(2, 2))]
        assert any(words in message for message in messages)


def test_files_are_filled_in_order(tmp_path: Path) -> None:
    outputs = make_outputs(shards(tmp_path, (4,), 0, 1), None) * 5
    assert [len(file) for file in split_files(outputs, (1 << 20) + 33)] == [2, 2, 1]
    assert [len(file) for file in split_files(outputs, 1)] == [1, 1, 1, 1, 1]
