"""The engines beside the exact one: bm25s and faiss, where they are installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from cloudrl.errors import InputError
from cloudrl.retriever.build import BuildOptions, build
from cloudrl.retriever.lock import contents
from cloudrl.retriever.opening import Source, open_retriever

pytestmark = pytest.mark.io


def ids(retriever_found: list[list[tuple[bytes, float]]]) -> list[list[str]]:
    return [[json.loads(document)["id"] for document, _ in each] for each in retriever_found]


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A corpus for search by words, with two passages that are the same."""
    texts = ["paris france", "berlin germany", "lima peru", "peru river", "rome italy", "peru river", "germany"]
    path = tmp_path / "words.jsonl"
    path.write_text("\n".join(json.dumps({"id": str(n), "contents": text}) for n, text in enumerate(texts)))
    return path


def test_bm25(words: Path, tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    record = build(BuildOptions((words,), engine="bm25"), tmp_path / "to")
    assert (record.engine, record.passages, record.encoder) == ("bm25", 7, "")
    retriever = open_retriever(Source(tmp_path / "to"))
    queries = ["What is the capital of Peru?", "germany", "river of peru", "the", "", "oslo", "PARIS Paris"]
    found = ids(retriever.search(queries, 3))
    assert found == [["2", "3", "5"], ["6", "1"], ["3", "5", "2"], [], [], [], ["0"]]
    assert ids(retriever.search(queries, 1)) == [each[:1] for each in found]
    assert ids(retriever.search(["peru"], 100)) == [["2", "3", "5"]]
    direct = Source(tmp_path / "to" / "bm25", corpus=tmp_path / "to" / "corpus.jsonl")
    assert ids(open_retriever(direct).search(queries, 3)) == found


def test_bm25_of_another_corpus(words: Path, corpus_path: Path, tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    build(BuildOptions((words,), engine="bm25"), tmp_path / "to")
    with pytest.raises(InputError, match="was made with a corpus of sha256"):
        open_retriever(Source(tmp_path / "to", corpus=corpus_path))
    (tmp_path / "to" / "retriever.json").unlink()
    with pytest.raises(InputError, match="has 7 passages, and the corpus"):
        open_retriever(Source(tmp_path / "to" / "bm25", corpus=corpus_path))


def test_faiss(corpus_path: Path, encoder_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faiss = pytest.importorskip("faiss")
    options = BuildOptions((corpus_path,), engine="faiss", encoder=str(encoder_path), factory="HNSW8")
    assert build(options, tmp_path / "to").index == "faiss.index"
    queries = ["capital of france", "the river", "army 7"]
    exact = open_retriever(Source(tmp_path / "to" / "flat.index", tmp_path / "to" / "corpus.jsonl", str(encoder_path)))
    approximate = open_retriever(Source(tmp_path / "to", faiss_parameters="efSearch=64"))
    assert ids(approximate.search(queries, 5)) == ids(exact.search(queries, 5))
    assert len(approximate.search(queries, 100)[0]) <= 40
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # as --threads sets it
    approximate.search(queries, 5)
    assert faiss.omp_get_max_threads() == 1
    with pytest.raises(InputError, match=r"faiss cannot read .*, or set 'speed=9'"):
        open_retriever(Source(tmp_path / "to", faiss_parameters="speed=9"))
    (tmp_path / "broken.index").write_bytes(b"IHNf" + bytes(20))
    with pytest.raises(InputError, match="faiss cannot read"):
        open_retriever(Source(tmp_path / "broken.index", corpus_path, str(encoder_path)))
    with pytest.raises(InputError, match="faiss cannot make an index Nonsense9"):
        build(
            BuildOptions((corpus_path,), engine="faiss", encoder=str(encoder_path), factory="Nonsense9"), tmp_path / "b"
        )


@pytest.mark.parametrize(
    ("engine", "package"), [("bm25", "bm25s"), ("faiss", "faiss-cpu"), ("flat", "torch transformers")]
)
def test_a_package_that_is_missing(
    engine: str,
    package: str,
    corpus_path: Path,
    encoder_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = BuildOptions((corpus_path,), engine=engine, encoder=str(encoder_path))
    for name in {"bm25": ["bm25s"], "faiss": ["faiss"], "flat": ["transformers"]}[engine]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError) as raised:
        build(options, tmp_path / "to")
    assert not contents(tmp_path / "to"), "it is found before anything is begun"
    assert (raised.value.hint or "").splitlines()[0] == f"pip install {package}"


def test_parquet_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match="needs the package pyarrow") as raised:
        build(BuildOptions((tmp_path / "some.parquet",), engine="bm25"), tmp_path / "to")
    assert raised.value.hint == "pip install pyarrow"
