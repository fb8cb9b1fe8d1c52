"""A fast CRC-32 is used, and zlib's own stands in where the fast one is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cloudrl.shards.crc import crc32


def test_the_fast_one_is_installed() -> None:
    assert crc32.__module__ == "zlib_ng.zlib_ng"


@pytest.mark.io
def test_without_it() -> None:
    """As on a node, whose image has no such package."""
    hide = "import sys; sys.modules['zlib_ng'] = None; "
    code = hide + "from cloudrl.shards.crc import crc32; print(crc32(b'123456789'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) == 0xCBF43926
