"""The fast CRC-32 is zlib's, and zlib's own stands in where the fast one is not installed."""

import subprocess
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.shards.source import crc32


@given(st.binary(max_size=5000), st.integers(0, 0xFFFF_FFFF))
def test_as_zlib(data: bytes, start: int) -> None:
    assert crc32(memoryview(data), start) == zlib.crc32(data, start)


def test_the_fast_one_is_installed() -> None:
    assert crc32.__module__ == "zlib_ng.zlib_ng"


@pytest.mark.io
def test_without_it() -> None:
    """As on a node, whose image has no such package."""
    hide = "import sys; sys.modules['zlib_ng'] = None; "
    code = hide + "from cloudrl.shards.source import crc32; print(crc32(b'123456789'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) == 0xCBF43926
