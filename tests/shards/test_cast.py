"""Casts against numbers that are known, and against torch."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.shards.dtypes import Caster, DType, cast_bytes, holds_nan

FLOATS = [DType.FLOAT64, DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16]


def f32(*bits: int) -> bytes:
    return struct.pack(f"<{len(bits)}I", *bits)


def bf16(*bits: int) -> bytes:
    return struct.pack(f"<{len(bits)}H", *bits)


@pytest.mark.parametrize(
    ("single", "half"),
    [
        (0x3F800000, 0x3F80),  # 1
        (0x3F808000, 0x3F80),  # half-way: to the even one below
        (0x3F818000, 0x3F82),  # half-way: to the even one above
        (0x3F808001, 0x3F81),
        (0x80000000, 0x8000),  # -0
        (0x00000001, 0x0000),  # the smallest
        (0x7F7FFFFF, 0x7F80),  # the largest becomes infinite
        (0x7F800000, 0x7F80),
        (0xFF800000, 0xFF80),
        (0x7FC00000, 0x7FC0),
        (0x7F800001, 0x7FC0),  # NaN whose upper half looks infinite
        (0xFFFFFFFF, 0x7FC0),  # NaN that would overflow to zero
    ],
)
def test_rounding_to_bf16(single: int, half: int) -> None:
    assert cast_bytes(f32(single), DType.FLOAT32, DType.BFLOAT16) == bf16(half)


def test_nan_in_fp16_keeps_what_there_is_room_for_as_in_torch() -> None:
    nan = f32(0x7FC00000, 0x7F800001, 0xFFC12345, 0x7FFFFFFF, 0xFF812345)  # the second and the last signal
    assert cast_bytes(nan, DType.FLOAT32, DType.FLOAT16) == bf16(0x7E00, 0x7E00, 0xFE09, 0x7FFF, 0xFE09)


def test_what_is_no_float_and_what_is_right_already_stay() -> None:
    data = bytes(range(16))
    assert cast_bytes(data, DType.INT64, DType.BFLOAT16) == data
    assert cast_bytes(data, DType.BFLOAT16, DType.BFLOAT16) == data


def test_pieces_longer_than_a_block() -> None:
    data = f32(*range(0x3F800000, 0x3F800000 + 70_001))
    whole = cast_bytes(data, DType.FLOAT32, DType.BFLOAT16)
    parts = [cast_bytes(data[at : at + 4000], DType.FLOAT32, DType.BFLOAT16) for at in range(0, len(data), 4000)]
    assert whole == b"".join(parts)


def test_a_caster_says_whether_it_saw_nan() -> None:
    caster = Caster(DType.FLOAT32, DType.BFLOAT16)
    assert caster(f32(0x7FC00000, *[0] * (1 << 18)))[1]
    assert not caster(f32(0x7F800000, 0x7F7FFFFF, 0xFF7FFFFF))[1]


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_is_seen_in_every_type(dtype: DType) -> None:
    good = cast_bytes(struct.pack("<3d", 1e300, -math.inf, 0.0), DType.FLOAT64, dtype)
    bad = cast_bytes(struct.pack("<3d", 1.0, math.nan, 0.0), DType.FLOAT64, dtype)
    assert (holds_nan(good, dtype), holds_nan(bad, dtype)) == (False, True)
    assert not holds_nan(b"\xff" * 8, DType.INT64)


@pytest.mark.verl
@pytest.mark.parametrize("stored", FLOATS)
@pytest.mark.parametrize("wanted", FLOATS[1:])
@given(st.lists(st.floats(), min_size=1, max_size=70))
def test_torch_casts_the_same(stored: DType, wanted: DType, values: list[float]) -> None:
    import torch

    there = torch.tensor(values, dtype=torch.float64).to(getattr(torch, stored.value))
    cast = there.to(getattr(torch, wanted.value))
    found = cast_bytes(there.view(torch.uint8).numpy().tobytes(), stored, wanted)
    expected = cast.view(torch.uint8).numpy().tobytes()
    if not any(math.isnan(value) for value in values):  # which NaN it is depends on how many there are at once
        assert found == expected
    assert torch.equal(torch.frombuffer(bytearray(found), dtype=getattr(torch, wanted.value)).isnan(), cast.isnan())
