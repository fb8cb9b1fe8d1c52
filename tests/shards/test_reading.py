"""Pieces of a file, also where reads past the cache are refused."""

import os
from pathlib import Path

import pytest

from cloudrl.errors import CheckpointError
from cloudrl.shards.reading import PIECE_BYTES, PieceReader, aligned_memory, open_pieces

CONTENT = bytes(range(256)) * 8192


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(CONTENT)
    return tmp_path / "file"


def test_pieces(file: Path) -> None:
    with open_pieces(file, aligned_memory()) as reader:
        for offset, length in ((0, 10), (5, PIECE_BYTES), (len(CONTENT) - 3, 3)):
            assert reader.read(offset, length) == CONTENT[offset : offset + length]
        with pytest.raises(CheckpointError, match="it became shorter"):
            reader.read(len(CONTENT) - 3, 4)


def test_a_file_system_that_refuses_direct_reads_only_when_they_come(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudrl.shards.reading._NOWAIT", 0)
    cached, refusing = (os.open(file, os.O_RDONLY), os.open(file.parent, os.O_RDONLY))  # a folder cannot be read
    try:
        reader = PieceReader(file, cached, refusing, aligned_memory())
        assert reader.read(7, 100) == CONTENT[7:107]
        assert reader.read(107, 100) == CONTENT[107:207]
    finally:
        os.close(cached)
        os.close(refusing)
