"""The published indexes, from a stand-in for the Hub: resumed, verified, and joined without a second copy."""

from __future__ import annotations

import gzip
import os
import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from fake_hub import FakeHub
from hypothesis import given
from hypothesis import strategies as st
from tiny_encoder import write_corpus

from cloudrl.errors import ConnectionFailed, InputError
from cloudrl.retriever import fetch as module
from cloudrl.retriever.fetch import _append, _fetch, fetch
from cloudrl.retriever.lock import locked
from cloudrl.retriever.opening import Source, open_retriever
from cloudrl.retriever.published import PUBLISHED
from cloudrl.retriever.vectors import create_vectors

pytestmark = pytest.mark.io

INDEX, CORPUS = "PeterJinGo/wiki-18-e5-index", "PeterJinGo/wiki-18-corpus"
PASSAGES, CUT = 300, 20_000


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """With an index of 300 vectors in two parts, and its corpus."""
    rows = create_vectors(tmp_path / "flat.index", PASSAGES, 32).rows("r+")
    rows[:] = np.random.default_rng(0).standard_normal(rows.shape)
    rows.flush()
    content = (tmp_path / "flat.index").read_bytes()
    write_corpus(tmp_path / "corpus.jsonl", PASSAGES)
    with FakeHub() as fake:
        fake.data_sets = {
            INDEX: {"README.md": b"about it", "part_aa": content[:CUT], "part_ab": content[CUT:]},
            CORPUS: {"wiki-18.jsonl.gz": gzip.compress((tmp_path / "corpus.jsonl").read_bytes())},
        }
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        yield fake


def check(folder: Path, hub: FakeHub) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [
        ".lock", "e5_Flat.index", "retriever.json", "wiki-18.jsonl", "wiki-18.jsonl.offsets",
    ]  # fmt: skip
    parts = hub.data_sets[INDEX]
    assert (folder / "e5_Flat.index").read_bytes() == parts["part_aa"] + parts["part_ab"]
    assert (folder / "wiki-18.jsonl").read_bytes() == gzip.decompress(hub.data_sets[CORPUS]["wiki-18.jsonl.gz"])


def test_a_download(hub: FakeHub, encoder_path: Path, tmp_path: Path) -> None:
    said: list[str] = []
    record = fetch("wiki-18", tmp_path / "to", say=said.append)
    check(tmp_path / "to", hub)
    assert (record.passages, record.encoder, record.prefixes) == (PASSAGES, "intfloat/e5-base-v2", "e5")
    assert said[0] == f"part_aa: 20.0 kB from {hub.url}/datasets/{INDEX}"
    hub.data_sets.clear()
    assert fetch("wiki-18", tmp_path / "to", say=said.append) == record  # without a request
    with pytest.raises(InputError, match="has an index of PeterJinGo/wiki-18-e5-index, not of") as raised:
        fetch("wiki-18-hnsw", tmp_path / "to")
    assert raised.value.hint == "Name a new folder: --to DIR"
    source = Source(tmp_path / "to", encoder=str(encoder_path), sample_check=False)
    assert len(open_retriever(source).search(["rome"], 3)[0]) == 3


@pytest.mark.parametrize("part", ["part_aa", "part_ab", "wiki-18.jsonl.gz"])
def test_a_download_that_breaks_goes_on(part: str, hub: FakeHub, tmp_path: Path) -> None:
    asked: list[tuple[str, int]] = []

    def broken(name: str, content: bytes) -> bytes:
        asked.append((name, len(content)))
        if name == part and is_broken:
            raise BrokenPipeError
        return content

    is_broken, hub.sends = True, broken
    with (
        mock.patch("time.sleep"),  # between the tries of huggingface_hub
        pytest.raises(ConnectionFailed, match=r"cannot be downloaded from http://127\.0\.0\.1") as raised,
    ):
        fetch("wiki-18", tmp_path / "to")
    assert "Type the same command to go on" in str(raised.value.hint)
    with pytest.raises(InputError, match="has an index of PeterJinGo/wiki-18-e5-index, not of"):
        fetch("wiki-18-hnsw", tmp_path / "to")
    is_broken = False
    fetch("wiki-18", tmp_path / "to")
    check(tmp_path / "to", hub)
    whole = [name for name, _ in asked if name != part]
    assert len(whole) == len(set(whole)), "what had come is not downloaded again"


def test_what_hf_xet_raises_blames_the_network(hub: FakeHub, tmp_path: Path) -> None:
    error = RuntimeError("Data processing error: error sending request")
    with (
        mock.patch("huggingface_hub.hf_hub_download", side_effect=error),
        pytest.raises(ConnectionFailed, match=f"cannot be downloaded from {hub.url}: Data processing error"),
    ):
        fetch("wiki-18", tmp_path / "to")


def test_content_that_is_not_what_the_hub_says(hub: FakeHub, tmp_path: Path) -> None:
    hub.sends = lambda name, content: content[:-1] + b"!" if name == "part_ab" else content
    with pytest.raises(
        ConnectionFailed, match=r"part_ab has 18,445 bytes with sha256 [0-9a-f]{64}, and http"
    ) as raised:
        fetch("wiki-18", tmp_path / "to")
    assert "It was removed" in str(raised.value.hint)
    assert not (tmp_path / "to" / "retriever.json").exists()
    hub.sends = lambda _name, content: content
    fetch("wiki-18", tmp_path / "to")
    check(tmp_path / "to", hub)


@given(
    st.binary(min_size=1, max_size=60), st.integers(1, 59), st.integers(1, 20), st.integers(1, 9), st.integers(0, 12)
)
def test_joining_goes_on_wherever_it_was_killed(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, cut: int, move: int, piece: int, killed_at: int
) -> None:
    """A piece has arrived, and is not cut off yet."""
    folder = tmp_path_factory.mktemp("join")
    cut = min(cut, len(content) - 1)
    whole, part = folder / "whole", folder / "part"
    whole.write_bytes(content[:cut])
    part.write_bytes(content[cut:])

    class Killed(Exception):
        pass

    calls = iter(range(1000))

    def fsync(_number: int) -> None:
        if next(calls) == killed_at:
            raise Killed

    with mock.patch.multiple(module, _PIECE_BYTES=piece), mock.patch.object(os, "fsync", fsync):
        for _ in range(2):
            try:
                _append(part, whole, cut, move, lambda *_: None)
            except Killed:
                continue
            break
    assert whole.read_bytes() == content
    assert not part.exists()


def test_too_little_room(hub: FakeHub, tmp_path: Path) -> None:
    usage = mock.Mock(free=1000)
    with (
        mock.patch.object(module.shutil, "disk_usage", return_value=usage),
        pytest.raises(InputError, match=r"takes about 50\.1 kB of disk"),
    ):
        fetch("wiki-18", tmp_path / "to")


def test_what_is_not_published(tmp_path: Path, hub: FakeHub) -> None:
    with pytest.raises(InputError, match="no index 'wiki-19' is published") as raised:
        fetch("wiki-19", tmp_path / "to")
    assert raised.value.hint == "Known: wiki-18, wiki-18-hnsw"
    hub.data_sets[INDEX] = {"README.md": b"moved"}
    with pytest.raises(ConnectionFailed, match="has not the files that Search-R1 has published there"):
        fetch("wiki-18", tmp_path / "to")
    hub.data_sets.clear()
    with pytest.raises(ConnectionFailed, match="cannot be downloaded from"):
        fetch("wiki-18", tmp_path / "to")


def test_a_folder_that_is_not_its_own(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has other files in it"):
        fetch("wiki-18", tmp_path)


def test_what_another_has_fetched_meanwhile_is_taken(hub: FakeHub, tmp_path: Path) -> None:
    folder, said = tmp_path / "to", queue.SimpleQueue[str]()
    with ThreadPoolExecutor() as threads:
        with locked(folder):
            second = threads.submit(fetch, "wiki-18", folder, say=said.put)
            assert said.get(timeout=60) == f"another build or fetch writes into {folder}; waiting for its end"
            record = _fetch(PUBLISHED["wiki-18"], folder, lambda *_: None, print, 1 << 20)
        assert second.result(timeout=60) == record
    assert said.get_nowait() == f"{folder} is complete"
    check(folder, hub)
