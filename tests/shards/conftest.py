"""Checkpoints to merge and to spoil."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from shard_files import copied


@pytest.fixture
def actor(tmp_path: Path) -> Path:
    """The folder of an actor, saved by FSDP2 over two ranks, to be changed at will."""
    return copied("torch-2.13.0/fsdp2", tmp_path)


@pytest.fixture
def replicated(tmp_path: Path) -> Path:
    """The same from 2 x 2 ranks, with the files of ranks 0 and 1."""
    return copied("torch-2.13.0/hsdp", tmp_path / "hsdp")
