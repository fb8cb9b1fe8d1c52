"""Sums and casts of shards, against zlib and torch."""

import json
import os
import socket
import struct
from pathlib import Path

import pytest

from cloudrl.node.shard_worker import _answer, cast
from cloudrl.shards.dtypes import DType, cast_bytes

SPECIAL = [
    0x00000000, 0x80000000, 0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F800000, 0xFF800000,
    0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F7FFFFF, 0xFF7FFFFF, 0x00000001, 0x807FFFFF,
    0x477FE000, 0x477FF000, 0x47800000, 0x33000000, 0x33000001, 0x387FC000,
]  # fmt: skip
"""Bits of float32: ties, infinities, all kinds of NaN, the largest, the smallest, what float16 cannot hold."""


@pytest.mark.parametrize(("name", "wanted"), [("BF16", DType.BFLOAT16), ("F16", DType.FLOAT16)])
def test_a_cast_is_that_of_the_merge(name: str, wanted: DType) -> None:
    """A tensor must not depend on where it was cast."""
    import numpy as np

    noise = np.random.default_rng(0).integers(0, 1 << 32, 100_000, dtype=np.uint32).tobytes()
    content = struct.pack(f"<{len(SPECIAL)}I", *SPECIAL) + noise
    ours, theirs = cast(content, name), cast_bytes(content, DType.FLOAT32, wanted)
    assert ours == theirs


def asked(descriptors: list[int], **request: object) -> bytes:
    """What the child writes for one question."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as answer:
        _answer(json.dumps(request).encode(), [descriptors[0], writing, *descriptors[1:]])
        return answer.read()


def test_a_sign_of_life_for_each_piece(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(5 << 20))
    of_file = {"offset": 0, "count": 9 << 20, "start": 0}
    said = asked([os.open(tmp_path / "file", os.O_RDONLY)], do="crc32", **of_file)
    assert said.startswith(b" " * 5 + b"{")
    assert json.loads(said)["size_bytes"] == 5 << 20

    ours, theirs = socket.socketpair()
    cast_of_file = {"offset": 0, "count": 5 << 10, "wanted": "BF16"}
    with ours, theirs:
        said = asked([os.open(tmp_path / "file", os.O_RDONLY), os.dup(theirs.fileno())], do="cast", **cast_of_file)
    assert said == b'  {"sent": 10240}'


def test_a_file_that_cannot_be_read_is_to_blame() -> None:
    of_file = {"offset": 0, "count": 1, "start": 0}
    said = asked([os.open("/proc/self/mem", os.O_RDONLY)], do="crc32", **of_file)  # nothing is at address 0
    assert json.loads(said) == {"error": "Input/output error", "unreadable": True}
    assert "unreadable" not in json.loads(asked([os.open("/dev/null", os.O_RDONLY)], do="nothing"))
