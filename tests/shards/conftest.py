"""Checkpoints to merge and to spoil."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from shard_files import config_files, copied


def _configured(kind: str, run: Path) -> Path:
    target = copied(f"torch-2.13.0/{kind}", run)
    (target / "huggingface").mkdir()
    for name, data in config_files().items():
        (target / "huggingface" / name).write_bytes(data)
    return target


@pytest.fixture
def actor(tmp_path: Path) -> Path:
    """The folder of an actor, saved by FSDP2 over two ranks, to be changed at will."""
    return _configured("fsdp2", tmp_path)


@pytest.fixture
def replicated(tmp_path: Path) -> Path:
    """The same from 2 x 2 ranks, with the files of ranks 0 and 1."""
    return _configured("hsdp", tmp_path / "hsdp")
