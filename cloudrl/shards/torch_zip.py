"""The zip file that `torch.save` writes, read through a `ShardSource`: where each storage is, and its CRC.

Members are not compressed, so a storage is one range of bytes of the file. Sizes past 4 GB are in zip64 records.
Source: torch 2.4 to 2.13, caffe2/serialize/inline_container.cc (`PyTorchStreamWriter`); APPNOTE.TXT of PKWARE.
"""

import hashlib
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from cloudrl.errors import CheckpointError
from cloudrl.saves.zip_directory import NoDirectory, read_directory
from cloudrl.shards.source import ShardSource, crc32

_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_NONE32 = 0xFFFFFFFF
_TAIL_BYTES = 1 << 16
_MAX_PICKLE_BYTES = 1 << 26
_MAX_MEMBERS = 200_000
_HEADERS_AT_ONCE = 4096
_ANOTHER_COPY = "Take another copy of this file, or another step: cloudrl checkpoints list"


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the zip file: its bytes are `offset` to `offset + size_bytes` of the file."""

    offset: int
    size_bytes: int
    crc32: int


class Members(Mapping[str, Member]):
    """The members of a file, by name; in arrays, since a merge has those of all ranks in memory.

    Args:
        rows: The row of each; files that have the same names share it.
        offsets: Of each row.
        sizes: Of each row.
        crcs: Of each row.
    """

    __slots__ = ("_crcs", "_offsets", "_rows", "_sizes")

    def __init__(
        self, rows: Mapping[str, int], offsets: Sequence[int], sizes: Sequence[int], crcs: Sequence[int]
    ) -> None:
        self._rows, self._offsets, self._sizes, self._crcs = rows, offsets, sizes, crcs

    @classmethod
    def of(cls, members: Mapping[str, Member]) -> "Members":
        """The same as arrays."""
        each = members.values()
        return cls(
            {name: row for row, name in enumerate(members)}, array("Q", (member.offset for member in each)),
            array("Q", (member.size_bytes for member in each)), array("I", (member.crc32 for member in each)),
        )  # fmt: skip

    @property
    def size_bytes(self) -> int:
        """Of all together."""
        return sum(self._sizes)

    def row(self, name: str) -> int:
        """Its number."""
        return self._rows[name]

    def __getitem__(self, name: str) -> Member:
        row = self._rows[name]
        return Member(self._offsets[row], self._sizes[row], self._crcs[row])

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


@dataclass(frozen=True)
class Archive:
    """A torch file.

    Attributes:
        root: The folder inside that holds everything: the file's name at save, without `.pt`; `archive` if it was
            saved to a stream.
        members: By name below the root: `data.pkl`, `byteorder`, `data/0`, ...
        digest: SHA-256 of its directory, as the record of a save has it (`cloudrl.saves.records`).
        has_crcs: Whether it says what its members' CRC-32 are.
    """

    source: ShardSource
    root: str
    members: Members
    digest: str
    has_crcs: bool = True

    def pickled(self, max_bytes: int = _MAX_PICKLE_BYTES) -> bytes:
        """The pickle, once its CRC is right.

        Raises:
            CheckpointError: It is damaged, absent or too large to be one.
        """
        member = self.members.get("data.pkl")
        if member is None:
            raise CheckpointError(f"{self.source.label} has no data.pkl: torch did not save it")
        most = min(max_bytes, _MAX_PICKLE_BYTES)
        if member.size_bytes > most:
            raise CheckpointError(
                f"{self.source.label} was refused: its data.pkl has {member.size_bytes} bytes, and {most} is the most "
                f"for a file of {len(self.members)} members",
                hint="torch writes some 400 bytes for a tensor. Take a copy that you trust.",
            )
        data = self.source.read(member.offset, member.size_bytes)
        if self.has_crcs and (found := crc32(data)) != member.crc32:
            raise damaged(self.source, "data.pkl", member.crc32, found)
        return data


def damaged(source: ShardSource, name: str, expected: int, found: int) -> CheckpointError:
    """The error for bytes that are not those that were saved."""
    return CheckpointError(
        f"{source.label} is damaged: {name} has CRC-32 {found:08x}, and {expected:08x} was saved", hint=_ANOTHER_COPY
    )


def open_archive(source: ShardSource, *, tail_bytes: int = _TAIL_BYTES, known: dict[Any, Any] | None = None) -> Archive:
    """Read the directory of a torch file.

    Args:
        source: The file.
        tail_bytes: Of its end, read at first.
        known: Values that files share, to be passed for each of them: those of other ranks have the same names.

    Raises:
        CheckpointError: It is cut off, no torch file, or not as torch writes them.
    """
    try:
        directory = read_directory(source.size_bytes(), source.read, tail_bytes)
    except NoDirectory as error:
        raise _cut_off(source, str(error)) from error
    digest = hashlib.sha256(directory).hexdigest()
    rows = _Rows()
    for entry in islice(_entries(source, directory), _MAX_MEMBERS + 1):
        rows.add(*entry)
    if len(rows.names) > _MAX_MEMBERS:
        raise CheckpointError(f"{source.label} was refused: it has more than {_MAX_MEMBERS} members")
    if len(rows.roots) != 1:
        some = sorted(rows.roots)[:5]
        raise CheckpointError(f"{source.label} is not a torch file: its members are in {some}, not in one folder")
    members = _located(source, rows, {} if known is None else known)
    if len(members) != len(rows.names):
        raise CheckpointError(f"{source.label} is not a torch file: two members have one name")
    if (order := members.get("byteorder")) is not None:
        written = source.read(order.offset, min(order.size_bytes, 16))
        if written != b"little":
            raise CheckpointError(f"{source.label} was written with byte order {written!r}, not little")
    # torch writes zeros where it was told to calculate none (torch 2.13, torch.serialization.set_crc32_options)
    return Archive(source, next(iter(rows.roots)), members, digest, has_crcs=any(rows.crcs))


class _Rows:
    """The directory as arrays: of each member its name below the root, the offset of its header, size and CRC-32."""

    def __init__(self) -> None:
        self.roots: set[str] = set()
        self.names: list[str] = []
        self.headers, self.sizes, self.crcs = array("Q"), array("Q"), array("I")

    def add(self, root: str, name: str, header: int, size: int, crc: int) -> None:
        """One member more."""
        self.roots.add(root)
        self.names.append(name)
        self.headers.append(header)
        self.sizes.append(size)
        self.crcs.append(crc)


def _entries(source: ShardSource, directory: bytes) -> Iterator[tuple[str, str, int, int, int]]:
    """Of each member its root, the name below, the offset of its header, its size and CRC-32."""
    at = 0
    while at < len(directory):
        if at + _ENTRY.size > len(directory) or directory[at : at + 4] != b"PK\1\2":
            raise CheckpointError(f"{source.label} is not a torch file: its directory is broken at byte {at}")
        fields = _ENTRY.unpack_from(directory, at)
        flags, method, crc, stored, size = fields[3], fields[4], fields[7], fields[8], fields[9]
        name_length, extra_length, comment_length, header = fields[10], fields[11], fields[12], fields[16]
        name_at = at + _ENTRY.size
        at = name_at + name_length + extra_length + comment_length
        if at > len(directory):
            raise CheckpointError(f"{source.label} is not a torch file: its directory is cut off")
        name = directory[name_at : name_at + name_length].decode("utf-8", "replace")
        extra = directory[name_at + name_length : at - comment_length]
        size, stored, header = _wide(extra, [size, stored, header])
        root, slash, below = name.partition("/")
        if method or flags & 1 or size != stored or not slash:
            raise CheckpointError(f"{source.label}: torch would not write the member {name!r} like this")
        yield root, sys.intern(below), header, size, crc  # files of other ranks have the same names


def _wide(extra: bytes, values: list[int]) -> list[int]:
    """Put the zip64 field's numbers in place of those that did not fit into 32 bits, in this order."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        body = extra[at + 4 : at + 4 + length]
        if kind == 1:
            wide = iter(struct.unpack_from(f"<{len(body) // 8}Q", body))
            return [next(wide, value) if value == _NONE32 else value for value in values]
        at += 4 + length
    return values


def _located(source: ShardSource, rows: _Rows, known: dict[Any, Any]) -> Members:
    """Members with the place of their bytes, which the local headers tell: torch pads these to align the data."""
    end, offsets = source.size_bytes(), array("Q")
    for name, header in zip(rows.names, rows.headers, strict=True):
        if header + _LOCAL.size > end:
            raise _cut_off(source, f"{name} is past the end")
    for first in range(0, len(rows.names), _HEADERS_AT_ONCE):
        headers = rows.headers[first : first + _HEADERS_AT_ONCE]
        for at, data in enumerate(source.read_many([(header, _LOCAL.size) for header in headers])):
            signature, *_, name_length, extra_length = _LOCAL.unpack(data)
            start = headers[at] + _LOCAL.size + name_length + extra_length
            if signature != b"PK\3\4" or start + rows.sizes[first + at] > end:
                raise _cut_off(source, f"{rows.names[first + at]} is not where its directory says")
            offsets.append(start)
    sizes = known.setdefault(("sizes", rows.sizes.tobytes()), rows.sizes)
    return Members(shared_rows(rows.names, known), offsets, sizes, rows.crcs)


def shared_rows(names: Iterable[str], known: dict[Any, Any]) -> Mapping[str, int]:
    """The number of each name; one and the same for all that have the same names in the same order."""
    key = "rows", tuple(names)
    if key not in known:
        known[key] = {name: row for row, name in enumerate(key[1])}
    rows: Mapping[str, int] = known[key]
    return rows


def _cut_off(source: ShardSource, why: str) -> CheckpointError:
    return CheckpointError(
        f"{source.label} is not a complete torch file: {why}. It was cut off, or is still being written",
        hint=_ANOTHER_COPY,
    )
