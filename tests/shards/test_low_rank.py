"""What an adapter adds, against numpy on whole tensors."""

import math
import struct
import zlib

import numpy as np
import pytest
from crafted import InMemory
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.errors import CheckpointError
from cloudrl.shards.dtypes import DType, cast_bytes
from cloudrl.shards.low_rank import Adder, Updates, as_floats
from cloudrl.shards.plan import Output, Piece, Update
from cloudrl.shards.shard import Shard
from cloudrl.shards.tensor_table import TensorTable
from cloudrl.shards.tensors import View
from cloudrl.shards.torch_zip import Archive, Member, Members


def half(values: np.ndarray, parts: int, dtype: DType = DType.FLOAT32, *, crc: int | None = None) -> Output:
    """A tensor cut over so many files, each with a byte of something else before it."""
    pieces, start = [], 0
    for rank, rows in enumerate(np.array_split(values, parts)):
        data = cast_bytes(rows.astype("<f4").tobytes(), DType.FLOAT32, dtype)
        member = Member(1, len(data), zlib.crc32(data) if crc is None else crc)
        shard = Shard(
            rank, None, Archive(InMemory(b"x" + data), "x", Members.of({"data/0": member}), ""), TensorTable({}, {})
        )
        if rows.size:
            pieces.append(Piece(shard, View("0", dtype, 0, rows.shape), start, rows.size, rows.size))
        start += rows.size
    return Output("x", values.shape, dtype, tuple(pieces))


def whole(a: np.ndarray, b: np.ndarray, experts: int, scale: float) -> np.ndarray:
    """As peft 0.21 has it: tuners/lora/layer.py, `ParamWrapper.get_delta_weight`."""
    rank = len(a) // experts
    ours, theirs = b.reshape(len(b), rank, experts), a.reshape(experts, rank, -1)
    return np.einsum("ore,eri->eoi", ours.astype("f8"), theirs.astype("f8")) * scale


@given(st.data())
def test_any_piece_of_a_tensor(data: st.DataObject) -> None:
    experts, rows, columns, rank = (data.draw(st.integers(1, 5)) for _ in range(4))
    numbers = np.random.default_rng(experts)
    a = numbers.standard_normal((experts * rank, columns), "f4")
    b = numbers.standard_normal((rows, rank * experts), "f4")
    update = Update(half(a, data.draw(st.integers(1, 3))), half(b, data.draw(st.integers(1, 3))), experts, 0.5)
    assert (update.rows, update.columns, update.rank) == (rows, columns, rank)
    first = data.draw(st.integers(0, experts * rows * columns - 1))
    values = np.ones(data.draw(st.integers(1, experts * rows * columns - first)), "f4")
    Adder(Updates(1, data.draw(st.integers(1, 130)))).add(update, first, values)
    expected = 1 + whole(a, b, experts, 0.5).ravel()[first : first + values.size]
    assert np.allclose(values, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16, DType.FLOAT64])
def test_halves_of_any_type(dtype: DType) -> None:
    a, b = np.array([[1, 2]], "f4"), np.array([[3], [4]], "f4")
    values = np.zeros(4, "f4")
    Adder(Updates(1)).add(Update(half(a, 1, dtype), half(b, 2, dtype), 1, 2.0), 0, values)
    assert values.tolist() == [6, 12, 8, 16]


def test_several_at_once() -> None:
    """Whose halves are kept for the next piece, and given up for others."""
    numbers = np.random.default_rng(0)
    updates = [
        Update(half(numbers.standard_normal((2, 3), "f4"), 1), half(numbers.standard_normal((4, 2), "f4"), 1), 1, 1.0)
        for _ in range(3)
    ]
    kept = Updates(2)

    def half_of(number: int) -> object:
        return kept.second_half(updates[number], 0, 0)[1]

    first = half_of(0)
    half_of(1)
    assert half_of(0) is first
    half_of(2)
    assert half_of(0) is first
    half_of(1)
    half_of(2)
    assert half_of(0) is not first


@pytest.mark.parametrize(
    ("experts", "rows", "most", "shapes"),
    [
        (5, 4, 4 * 2 * 2, [(2, 4, 2), (2, 4, 2), (1, 4, 2)]),  # as many experts as there is room for
        (2, 5, 2 * 2, [(1, 2, 2), (1, 2, 2), (1, 1, 2)] * 2),  # no room for one: some of its rows
        (1, 5, 1, [(1, 1, 2)] * 5),
        (3, 4, 1000, [(3, 4, 2)]),
    ],
)
def test_no_more_of_it_than_a_window_is_in_memory(
    experts: int, rows: int, most: int, shapes: list[tuple[int, int, int]]
) -> None:
    update = Update(half(np.zeros((experts * 2, 3)), 1), half(np.zeros((rows, 2 * experts)), 2), experts, 1.0)
    kept = Updates(1, most)
    seen = [kept.second_half(update, expert, row) for expert in range(experts) for row in range(rows)]
    windows = {window: values.shape for window, values in seen}
    assert list(windows.values()) == shapes


@pytest.mark.parametrize("damaged", ["a", "b"])
def test_a_damaged_half(damaged: str) -> None:
    crcs = {"a": None, "b": None, damaged: 7}
    update = Update(half(np.ones((1, 2)), 1, crc=crcs["a"]), half(np.ones((2, 1)), 1, crc=crcs["b"]), 1, 1.0)
    with pytest.raises(CheckpointError, match="is damaged: data/0 has CRC-32"):
        Adder(Updates(1)).add(update, 0, np.zeros(4, "f4"))


def test_float32_is_copied() -> None:
    data = bytearray(struct.pack("<2f", 1, 2))
    values = as_floats(memoryview(data), DType.FLOAT32)
    values += 1
    assert (values.tolist(), struct.unpack("<2f", data)) == ([2, 3], (1, 2))
    assert math.isclose(values.sum(), 5)
