"""The zip file that `torch.save` writes, laid out before its content is known: where each member goes, and headers.

Members are stored as they are, at multiples of 64 bytes; sizes and places past 4 GB are in zip64 records. Unlike torch,
the headers in front of members have size and CRC-32, so no record follows them.
Source: torch 2.13, caffe2/serialize/inline_container.cc (`PyTorchStreamWriter`, `getPadding`); APPNOTE.TXT of PKWARE.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_ALIGN = 64
_WIDE = 0xFFFFFFFF
_UTF8 = 1 << 11
_LOCAL = struct.Struct("<4s5H3L2H")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_PADDING = b"FB"
_END64, _LOCATOR, _END = struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL"), struct.Struct("<4s4H2LH")
_END64_REST = 44
_MOST_ENTRIES = 0xFFFF


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one member.

    Attributes:
        name: With the folder inside the zip: `model_world_size_4_rank_0/data/0`.
        header_at: Where its header begins.
        offset: Where its bytes begin.
        size_bytes: Of them.
    """

    name: bytes
    header_at: int
    offset: int
    size_bytes: int


def lay_out(root: str, members: Sequence[tuple[str, int]]) -> list[Slot]:
    """Place members one after the other.

    Args:
        root: The folder inside that holds everything: the file's name without `.pt`.
        members: Name below the root, and size in bytes.
    """
    slots: list[Slot] = []
    at = 0
    for below, size in members:
        name = f"{root}/{below}".encode()
        start = at + _LOCAL.size + len(name) + len(_wide_sizes(size)) + len(_PADDING) + 2
        slots.append(Slot(name, at, -(-start // _ALIGN) * _ALIGN, size))
        at = slots[-1].offset + size
    return slots


def local_header(slot: Slot, crc: int) -> bytes:
    """What is in front of a member, up to its first byte."""
    wide = _wide_sizes(slot.size_bytes)
    size = _WIDE if wide else slot.size_bytes
    padding = slot.offset - slot.header_at - _LOCAL.size - len(slot.name) - len(wide) - len(_PADDING) - 2
    extra = wide + _PADDING + struct.pack("<H", padding) + b"Z" * padding
    head = _LOCAL.pack(b"PK\3\4", 0, _UTF8, 0, 0, 0, crc, size, size, len(slot.name), len(extra))
    return head + slot.name + extra


def directory(slots: Sequence[Slot], crcs: Sequence[int]) -> bytes:
    """What is behind the last member: an entry for each, and where they begin."""
    start = slots[-1].offset + slots[-1].size_bytes
    entries = b"".join(_entries(slots, crcs))
    count, short = len(slots), min(len(slots), _MOST_ENTRIES)
    end = _END64.pack(b"PK\6\6", _END64_REST, 0, 0, 0, 0, count, count, len(entries), start)
    end += _LOCATOR.pack(b"PK\6\7", 0, start + len(entries), 1)
    return entries + end + _END.pack(b"PK\5\6", 0, 0, short, short, min(len(entries), _WIDE), min(start, _WIDE), 0)


def _entries(slots: Sequence[Slot], crcs: Sequence[int]) -> Iterator[bytes]:
    for slot, crc in zip(slots, crcs, strict=True):
        size = min(_WIDE, slot.size_bytes)
        at = min(_WIDE, slot.header_at)
        wide = b"".join(struct.pack("<Q", value) for value in _wide_values(slot, size, at))
        extra = struct.pack("<2H", 1, len(wide)) + wide if wide else b""
        head = _ENTRY.pack(
            b"PK\1\2", 0, 0, _UTF8, 0, 0, 0, crc, size, size, len(slot.name), len(extra), 0, 0, 0, 0, at
        )  # fmt: skip
        yield head + slot.name + extra


def _wide_values(slot: Slot, size: int, at: int) -> list[int]:
    """Those that do not fit into 32 bits, in the order of the zip64 record."""
    sizes = [slot.size_bytes] * 2 if size == _WIDE else []
    return [*sizes, *([slot.header_at] if at == _WIDE else [])]


def _wide_sizes(size: int) -> bytes:
    """The zip64 record of a header in front of a member; nothing if its size fits into 32 bits."""
    return struct.pack("<2H2Q", 1, 16, size, size) if size >= _WIDE else b""
