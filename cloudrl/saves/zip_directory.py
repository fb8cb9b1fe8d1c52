"""The directory at the end of a zip file, found with as few reads as can be; zip64 included.

torch writes it last, without a comment after it (torch 2.4 to 2.13, caffe2/serialize/inline_container.cc,
`PyTorchStreamWriter`). Format: PKWARE's APPNOTE.TXT, 4.3.12 to 4.3.16.
"""

import hashlib
import os
import struct
from collections.abc import Callable
from typing import Tuple

_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_NONE32 = 0xFFFFFFFF
_ENDS_BYTES = _END64.size + _END64_LOCATOR.size + _END.size
_MAX_BYTES = 1 << 26


class NoDirectory(Exception):
    """The file does not end with one: it is not a zip file, is cut off, or is still being written."""


def read_directory(size: int, read: Callable[[int, int], bytes], tail_bytes: int = _ENDS_BYTES) -> bytes:
    """The directory of a file of so many bytes.

    Args:
        size: Of the file.
        read: Gives exactly `length` bytes from `offset` on.
        tail_bytes: Read at first: with more than the default one read may do, where each costs a round trip.

    Raises:
        NoDirectory: See there.
    """
    tail, tail_start, length, offset = _find(size, read, tail_bytes)
    start = offset - tail_start
    return tail[start : start + length] if start >= 0 else read(offset, length)


def check_end(size: int, read: Callable[[int, int], bytes]) -> None:
    """Check that a file begins and ends as a zip file does; of its directory only the first bytes are read.

    Raises:
        NoDirectory: See there.
    """
    _, _, length, offset = _find(size, read, _ENDS_BYTES)
    if not length or read(0, 4) != b"PK\3\4" or read(offset, 4) != b"PK\1\2":
        raise NoDirectory("its directory or its beginning is overwritten")


def directory_digest(descriptor: int) -> str:
    """SHA-256 of the directory of an open file, in hexadecimals; nothing before the directory is read.

    Raises:
        NoDirectory: See there.
        OSError: It cannot be read.
    """

    def read(offset: int, length: int) -> bytes:
        content = os.pread(descriptor, length, offset)
        if len(content) != length:
            raise NoDirectory("it became shorter while it was read")
        return content

    return hashlib.sha256(read_directory(os.fstat(descriptor).st_size, read)).hexdigest()


def _find(size: int, read: Callable[[int, int], bytes], tail_bytes: int) -> Tuple[bytes, int, int, int]:
    """The last bytes of a file, where they begin, and length and offset of its directory."""
    if size < _END.size:
        raise NoDirectory(f"it has {size} bytes")
    tail_start = max(0, size - tail_bytes)
    tail = read(tail_start, size - tail_start)
    signature, *_, length, offset, comment = _END.unpack_from(tail, len(tail) - _END.size)
    if signature != b"PK\5\6" or comment:
        raise NoDirectory("it does not end as a zip file does")
    end = size - _END.size
    if _NONE32 in {length, offset} or _is_zip64(tail):
        end, length, offset = _read_end64(tail, size, read)
    if length > _MAX_BYTES or offset + length > end:
        raise NoDirectory(f"its directory of {length} bytes at {offset} is not in it")
    return tail, tail_start, length, offset


def _is_zip64(tail: bytes) -> bool:
    start = len(tail) - _END.size - _END64_LOCATOR.size
    return start >= 0 and tail[start : start + 4] == b"PK\6\7"


def _read_end64(tail: bytes, size: int, read: Callable[[int, int], bytes]) -> tuple[int, int, int]:
    """The offset of the zip64 end record, and length and offset of the directory."""
    if not _is_zip64(tail):
        raise NoDirectory("its zip64 record is missing")
    _, _, end, _ = _END64_LOCATOR.unpack_from(tail, len(tail) - _END.size - _END64_LOCATOR.size)
    if end + _END64.size > size:
        raise NoDirectory("its zip64 record is past the end")
    signature, *_, length, offset = _END64.unpack(read(end, _END64.size))
    if signature != b"PK\6\6":
        raise NoDirectory("its zip64 record is not one")
    return end, length, offset
