"""A corpus and an encoder made on the spot."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tiny_encoder import make_encoder, write_corpus

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def corpus_path(tmp_path: Path) -> Path:
    write_corpus(tmp_path / "passages.jsonl")
    return tmp_path / "passages.jsonl"


@pytest.fixture(scope="session")
def encoder_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder") / "tiny-e5"
    make_encoder(folder)
    return folder
