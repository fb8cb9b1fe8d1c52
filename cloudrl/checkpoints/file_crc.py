"""The CRC-32 of a whole torch file from its directory, reading only what lies between the storages.

A manifest has the CRC of each file as it was when saved. The directory of the file has one for each storage, and
those are checked when the storages are read; so both together say, before gigabytes are read, whether the file is
the one of the manifest. Combining CRCs: Mark Adler's `crc32_combine` (zlib 1.2.12 on, crc32.c).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from cloudrl.checkpoints.crc import crc32

if TYPE_CHECKING:
    from cloudrl.checkpoints.torch_zip import Archive

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31


def file_crc(archive: Archive) -> int:
    """CRC-32 of all bytes, if each storage has the CRC that the directory gives it.

    Raises:
        CheckpointError: The file cannot be read.
    """
    source = archive.source
    members = sorted(archive.members.values(), key=lambda member: member.offset)
    gaps, end = [], 0
    for member in members:
        gaps.append((end, max(0, member.offset - end)))
        end = max(end, member.offset + member.size_bytes)
    last = (end, source.size_bytes() - end)
    crc = 0
    for member, gap in zip(members, source.read_many(gaps), strict=True):
        crc = combine(crc32(gap, crc), member.crc32, member.size_bytes)
    return crc32(source.read(*last), crc)


def combine(first: int, second: int, second_length: int) -> int:
    """The CRC-32 of two byte strings one after the other, from theirs and the length of the second."""
    return _multiply(_shift(second_length), first) ^ second


def _multiply(one: int, other: int) -> int:
    """The product of two polynomials over GF(2), modulo that of CRC-32; the highest bit is the constant term."""
    product, mask = 0, _ONE
    while mask:
        if one & mask:
            product ^= other
        other = other >> 1 ^ (_POLYNOMIAL if other & 1 else 0)
        mask >>= 1
    return product


@lru_cache(maxsize=4096)
def _shift(length: int) -> int:
    """The polynomial x to the power of 8 * length."""
    result, power, bits = _ONE, _ONE >> 1, 8 * length  # x^0, x^1
    while bits:
        if bits & 1:
            result = _multiply(power, result)
        power, bits = _multiply(power, power), bits >> 1
    return result
