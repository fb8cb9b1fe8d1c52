"""The zip file that torch writes: small, large (zip64), and other files."""

import hashlib
import io
import struct
import zipfile
import zlib
from pathlib import Path

import pytest
from crafted import InMemory
from shard_files import FIXTURES, write_members

from cloudrl.errors import CheckpointError
from cloudrl.saves.zip_directory import directory_digest, read_directory
from cloudrl.shards.source import LocalShard
from cloudrl.shards.torch_zip import open_archive

GOOD = {"data.pkl": b"\x80\x02N.", "byteorder": b"little", "data/0": bytes(range(100))}


class Sparse(InMemory):
    """A file of terabytes of which only some ranges are there."""

    def __init__(self, parts: dict[int, bytes], size: int) -> None:
        super().__init__(b"", "huge.pt")
        self._parts, self._size = parts, size

    def size_bytes(self) -> int:
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        data = bytearray(length)
        for start, part in self._parts.items():
            low, high = max(offset, start), min(offset + length, start + len(part))
            if low < high:
                data[low - offset : high - offset] = part[low - start : high - start]
        return bytes(data)


def huge(size: int) -> Sparse:
    """`x/data/0` of so many bytes, then `x/data.pkl`, with all numbers in zip64 records."""
    pickled, name, late = b"\x80\x02N.", b"x/data/0", b"x/data.pkl"
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 45, 0, 0, 0, 0, 0, 0, 0, len(name), 0) + name
    second_at = len(local) + size
    crc = zlib.crc32(pickled)
    second = struct.pack("<4s5H3L2H", b"PK\3\4", 45, 0, 0, 0, 0, crc, 4, 4, len(late), 0) + late + pickled
    directory_at = second_at + len(second)
    full = 0xFFFFFFFF
    wide, far = struct.pack("<HH2Q", 1, 16, size, size), struct.pack("<HHQ", 1, 8, second_at)
    entry = struct.Struct("<4s6H3L5H2L")
    directory = (
        entry.pack(b"PK\1\2", 45, 45, 0, 0, 0, 0, 7, full, full, len(name), len(wide), 0, 0, 0, 0, 0) + name + wide
        + entry.pack(b"PK\1\2", 45, 45, 0, 0, 0, 0, crc, 4, 4, len(late), len(far), 0, 0, 0, 0, full) + late + far
    )  # fmt: skip
    end_at = directory_at + len(directory)
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 2, 2, len(directory), directory_at)
    end += struct.pack("<4sLQL", b"PK\6\7", 0, end_at, 1)
    end += struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 2, 2, full, full, 0)
    parts = {0: local, second_at: second, directory_at: directory, end_at: end}
    return Sparse(parts, end_at + len(end))


@pytest.mark.parametrize("size", [5, (1 << 32) - 1, 1 << 32, 1 << 41])
def test_storages_past_four_gigabytes(size: int) -> None:
    source = huge(size)
    archive = open_archive(source)
    assert hashlib.sha256(read_directory(source.size_bytes(), source.read)).hexdigest() == archive.digest
    assert archive.members["data/0"].size_bytes == size
    assert archive.members["data/0"].crc32 == 7
    assert archive.pickled() == b"\x80\x02N."


def test_offsets_are_those_of_the_bytes(tmp_path: Path) -> None:
    write_members(tmp_path / "x.pt", GOOD)
    archive = open_archive(LocalShard(tmp_path / "x.pt"))
    assert archive.root == "x"
    for name, data in GOOD.items():
        member = archive.members[name]
        assert archive.source.read(member.offset, member.size_bytes) == data


def spoiled(name: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for member, data in GOOD.items():
            if name == "big endian" and member == "byteorder":
                archive.writestr("x/byteorder", b"big")
                continue
            method = zipfile.ZIP_DEFLATED if name == "compressed" else zipfile.ZIP_STORED
            archive.writestr(f"{'y' if name == 'two roots' and member == 'data/0' else 'x'}/{member}", data, method)
        if name == "no folder":
            archive.writestr("loose", b"")
        if name == "comment":
            archive.comment = b"not torch"
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("big endian", "byte order b'big'"),
        ("compressed", "torch would not write"),
        ("two roots", "not in one folder"),
        ("no folder", "torch would not write"),
        ("comment", "not a complete torch file"),
    ],
)
def test_zip_files_that_torch_did_not_write(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "x.pt").write_bytes(spoiled(name))
    with pytest.raises(CheckpointError, match=words):
        open_archive(LocalShard(tmp_path / "x.pt"))


def test_a_pickle_that_is_missing_or_damaged(tmp_path: Path) -> None:
    write_members(tmp_path / "x.pt", {"data/0": b"x"})
    with pytest.raises(CheckpointError, match=r"has no data\.pkl"):
        open_archive(LocalShard(tmp_path / "x.pt")).pickled()
    write_members(tmp_path / "x.pt", GOOD)
    data = (tmp_path / "x.pt").read_bytes().replace(b"\x80\x02N.", b"\x80\x02K.")
    (tmp_path / "x.pt").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"is damaged: data\.pkl"):
        open_archive(LocalShard(tmp_path / "x.pt")).pickled()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        open_archive(LocalShard(tmp_path / "x.pt"))


@pytest.mark.parametrize("path", sorted(FIXTURES.rglob("*.pt"))[::3], ids=lambda path: path.parts[-3])
def test_a_record_has_the_digest_that_a_reader_finds(path: Path) -> None:
    with path.open("rb") as file:
        assert open_archive(LocalShard(path)).digest == directory_digest(file.fileno())
