"""What does not go together is refused before it is served; what does finds what brute force finds."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from test_exact import brute_force
from tiny_encoder import write_corpus

from cloudrl.errors import InputError
from cloudrl.retriever import memory
from cloudrl.retriever.build import BuildOptions, build
from cloudrl.retriever.encoder import Encoder
from cloudrl.retriever.opening import Source, open_retriever
from cloudrl.retriever.vectors import open_vectors

pytestmark = pytest.mark.io


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, encoder_path: Path) -> Path:
    folder = tmp_path_factory.mktemp("built")
    write_corpus(folder / "passages.jsonl")
    build(BuildOptions((folder / "passages.jsonl",), encoder=str(encoder_path)), folder / "index")
    return folder / "index"


@pytest.fixture
def index(built: Path, tmp_path: Path) -> Path:
    """A copy, to be spoilt."""
    return Path(shutil.copytree(built, tmp_path / "index"))


@pytest.mark.parametrize("precision", ["", "float16"])
def test_it_finds_what_brute_force_finds(built: Path, encoder_path: Path, precision: str) -> None:
    queries = ["capital of france", "the river", "army 7", "capital of france"]
    said: list[str] = []
    retriever = open_retriever(Source(built, precision=precision), say=said.append)
    vectors = Encoder(str(encoder_path)).encode_queries(queries)
    rows = open_vectors(built / "flat.index").rows()
    expected = [brute_force(rows, vector, 5) for vector in vectors]
    lines = (built / "corpus.jsonl").read_bytes().splitlines()
    for found in (retriever.search(queries, 5), [retriever.search([query], 5)[0] for query in queries]):
        for each, hits in zip(found, expected, strict=True):
            assert [hit.document for hit in each] == [lines[hit.row] for hit in hits]
            assert [hit.score for hit in each] == pytest.approx([hit.score for hit in hits], abs=1e-5)
    assert retriever.identity["corpus"]["passages"] == 40
    assert retriever.identity["encoder"] == {"name": str(encoder_path), "prefixes": "e5", "dim": 32}
    assert "of memory" in said[0]


def test_the_files_of_others_need_no_record(index: Path, encoder_path: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", open_vectors(index / "flat.index").rows())
    source = Source(tmp_path / "rows.npy", corpus=index / "corpus.jsonl", encoder=str(encoder_path))
    assert open_retriever(source).search(["rome"], 3) == open_retriever(Source(index)).search(["rome"], 3)
    with pytest.raises(InputError, match="that names its corpus") as raised:
        open_retriever(dataclasses.replace(source, corpus=None))
    assert raised.value.hint == "--corpus FILE"
    with pytest.raises(InputError, match="nothing says which encoder"):
        open_retriever(dataclasses.replace(source, encoder=""))


def test_an_index_that_is_truncated(index: Path) -> None:
    os.truncate(index / "flat.index", 3000)
    with pytest.raises(InputError, match=r"3,000 bytes, but its header says 40 vectors of 32, which take 5,165"):
        open_retriever(Source(index))


def test_an_index_that_was_exchanged(index: Path) -> None:
    with (index / "flat.index").open("r+b") as file:
        file.seek(100)
        file.write(b"1234")
    with pytest.raises(InputError, match=r"says that flat\.index was made with the fingerprint"):
        open_retriever(Source(index))


def test_another_corpus(index: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text((index / "corpus.jsonl").read_text().replace("rome", "oslo"))
    with pytest.raises(InputError, match=r"was made with a corpus of sha256 [0-9a-f]{64}, but this is [0-9a-f]{64}"):
        open_retriever(Source(index, corpus=other))


def test_another_corpus_without_a_record(index: Path, encoder_path: Path, tmp_path: Path) -> None:
    write_corpus(tmp_path / "shorter.jsonl", 39)
    (index / "retriever.json").unlink()
    source = Source(index / "flat.index", corpus=tmp_path / "shorter.jsonl", encoder=str(encoder_path))
    with pytest.raises(InputError, match=r"has 40 passages, and the corpus .*shorter.jsonl 39"):
        open_retriever(source)
    lines = (index / "corpus.jsonl").read_text().splitlines()
    (tmp_path / "turned.jsonl").write_text("\n".join(reversed(lines)))
    turned = dataclasses.replace(source, corpus=tmp_path / "turned.jsonl")
    with pytest.raises(InputError, match="the vector of passage 0 is not what") as raised:
        open_retriever(turned)
    assert "--no-sample-check" in str(raised.value.hint)
    assert open_retriever(dataclasses.replace(turned, sample_check=False))


def test_another_encoder(index: Path, tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    encoder = Path(json.loads((index / "retriever.json").read_text())["encoder"])
    for dim, said in ((32, "is not what"), (16, "has vectors of 32 numbers, but the encoder .* makes 16")):
        other = Path(shutil.copytree(encoder, tmp_path / f"other-{dim}"))
        config = BertConfig.from_pretrained(encoder)
        config.hidden_size = dim
        BertModel(config).save_pretrained(other)
        with pytest.raises(InputError, match=said):
            open_retriever(Source(index, encoder=str(other)))


def test_an_encoder_with_other_prefixes(index: Path) -> None:
    with pytest.raises(InputError, match="with the prefixes 'none'"):
        open_retriever(Source(index, prefixes="none"))


@pytest.mark.parametrize(
    ("change", "way_out"),
    [
        ({"engine": "flat"}, "for each batch, which is slow: --from-disk"),
        ({"precision": "float16", "from_disk": True}, "which is slow: --precision float32 --from-disk"),
        ({"engine": "faiss", "from_disk": True}, "an index that takes less: cloudrl retriever build --help"),
    ],
)
def test_too_little_memory_is_said_before_anything_is_read(index: Path, change: dict[str, Any], way_out: str) -> None:
    (index / "corpus.jsonl").unlink()
    small = memory.Memory("this machine", 2 * 10**9, 10**9)
    with (
        mock.patch.object(memory, "host_memory", return_value=small),
        pytest.raises(
            InputError, match=r"the index takes 1\.1 GB of memory; this machine has 1.0 GB free of 2.0 GB"
        ) as raised,
    ):
        open_retriever(Source(index, **change))
    assert way_out in str(raised.value.hint)


def test_a_node_needs_memory_for_its_shard_alone(index: Path) -> None:
    with (
        mock.patch.object(memory, "host_memory", return_value=memory.Memory("this machine", 0, 0)),
        mock.patch.object(memory, "_CPU_WORK_BYTES", 0),
        pytest.raises(InputError, match="the index takes"),
    ):
        open_retriever(Source(index, shards=2))
    index_bytes = 40 * 32 * 4
    with (
        mock.patch.object(memory, "host_memory", return_value=memory.Memory("x", index_bytes, index_bytes // 2)),
        mock.patch.object(memory, "_CPU_WORK_BYTES", 0),
    ):
        assert open_retriever(Source(index, shards=2))
        with pytest.raises(InputError):
            open_retriever(Source(index))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shards": 41}, "40 passages cannot be shared by 41 nodes"),
        ({"shards": 2, "engine": "faiss"}, "only an index of the engine flat can be shared"),
    ],
)
def test_shards_that_cannot_be(built: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        open_retriever(Source(built, **change))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"engine": "x"}, "there is no engine 'x'"),
        ({"precision": "int8"}, "vectors cannot be int8"),
        ({"place": Path("missing")}, "there is no index missing"),
        ({"corpus": Path("missing")}, "there is no corpus missing"),
    ],
)
def test_options_that_are_none(built: Path, change: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        open_retriever(dataclasses.replace(Source(built), **change))


def test_a_folder_that_is_not_finished(index: Path, tmp_path: Path) -> None:
    (index / "flat.index").unlink()
    with pytest.raises(InputError, match=r"flat\.index is missing"):
        open_retriever(Source(index))
    (index / "retriever.json").write_text('{"engine": "flat"}')
    with pytest.raises(InputError, match="cannot be read"):
        open_retriever(Source(index))
    with pytest.raises(InputError, match="has no finished index"):
        open_retriever(Source(tmp_path))
