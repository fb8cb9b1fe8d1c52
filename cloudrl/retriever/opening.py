"""From files to something that answers: looks at everything that can be wrong before it loads what is large."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cloudrl.errors import InputError
from cloudrl.retriever import memory
from cloudrl.retriever.bm25 import Bm25Engine, is_bm25
from cloudrl.retriever.corpus import Corpus, open_corpus
from cloudrl.retriever.encoder import Encoder
from cloudrl.retriever.engine import ENGINES, Engine, FaissEngine, FlatEngine, Found, Searches, check_sample
from cloudrl.retriever.exact import ExactIndex, Hit
from cloudrl.retriever.record import Record, check_same, read_record
from cloudrl.retriever.serpapi import NAME as SERPAPI
from cloudrl.retriever.serpapi import open_serpapi
from cloudrl.retriever.sharing import rows_of
from cloudrl.retriever.vectors import VectorFile, fingerprint, is_vector_file, open_vectors

OnProgress = Callable[[str, int, int], object]
"""Called with what is read, the bytes that are done, and all of them."""
PRECISIONS = ("float32", "float16")
"""Of the vectors that are searched; float32 on a CPU is the file itself, everything else a copy."""


@dataclass(frozen=True)
class Source:
    """What to serve; what is None or "" is taken from the index's record, or found out.

    Attributes:
        place: a folder of `build` or `fetch`, or an index; None for the web.
        corpus: jsonl.
        encoder: on the Hub, or a folder.
        prefixes: see `encoder.PREFIXES`.
        engine: one of `ENGINES`, or `SERPAPI`, to which nothing else applies.
        device: of torch.
        precision: one of `PRECISIONS`; if "", float32 on a CPU and float16 on a GPU.
        from_disk: whether the index may be larger than the memory.
        sample_check: whether some passages are encoded and compared with the index.
        faiss_parameters: see `FaissEngine`.
        shard: which part of the vectors is searched here.
        shards: in how many parts they are.
    """

    place: Path | None
    corpus: Path | None = None
    encoder: str = ""
    prefixes: str = ""
    engine: str = ""
    device: str = "cpu"
    precision: str = ""
    from_disk: bool = False
    sample_check: bool = True
    faiss_parameters: str = ""
    shard: int = 0
    shards: int = 1

    @property
    def is_half(self) -> bool:
        """Whether vectors are searched in float16."""
        return (self.precision or ("float32" if self.device == "cpu" else "float16")) == "float16"


class Retriever:
    """An engine with its corpus.

    Attributes:
        engine: finds rows.
        identity: what it serves, for a program.
    """

    def __init__(self, engine: Engine, corpus: Corpus, identity: dict[str, Any]) -> None:
        self.engine, self._corpus, self.identity = engine, corpus, identity

    def search(self, queries: Sequence[str], k: int) -> list[list[Found]]:
        """For each query at most `k` passages, the best first."""
        return self.passages(self.engine.search(queries, k))

    def passages(self, hits_of_queries: list[list[Hit]]) -> list[list[Found]]:
        """What is sent for hits."""
        return [[Found(self._corpus.document(row), score) for row, score in hits] for hits in hits_of_queries]


def open_searches(source: Source, *, on_progress: OnProgress, say: Callable[[str], object]) -> Searches:
    """An index, or the web; see `open_retriever` and `open_serpapi`."""
    if source.engine != SERPAPI:
        return open_retriever(source, on_progress=on_progress, say=say)
    if replace(source, engine="") != Source(None):
        raise InputError(f"the engine {SERPAPI} searches the web: no index, corpus, encoder or device applies to it")
    return open_serpapi(os.environ, say=say)


def open_retriever(
    source: Source, *, on_progress: OnProgress = lambda *_: None, say: Callable[[str], object] = lambda _: None
) -> Retriever:
    """Load what `source` says.

    Args:
        source: what to load.
        on_progress: gets the progress.
        say: gets a line about the memory it takes.

    Raises:
        InputError: files are missing or damaged, do not belong together, or do not fit into the memory.
    """
    index, record = _index_of(source.place)
    name = source.engine or _engine_of(index)
    _check_options(source, index, name)
    vectors = open_vectors(index) if name == "flat" else None
    if record:
        check_same("the fingerprint", index, record.fingerprint, index_fingerprint(index))
    if vectors:
        say(_check_memory(source, vectors))
    elif name == "faiss":
        other = "Use a machine with more, or an index that takes less: cloudrl retriever build --help"
        say(memory.check_host(memory.host_memory(), index.stat().st_size, hint=other))
    corpus = _open_corpus(source, index, record, on_progress)
    if vectors:
        _check_count(index, vectors.count, corpus)
    engine = _open_engine(name, source, index, vectors, record, corpus, on_progress)
    if not vectors:
        _check_count(index, engine.passages, corpus)
    identity: dict[str, Any] = {
        "engine": name,
        "index": {"path": str(index), "fingerprint": index_fingerprint(index), "passages": len(corpus)},
        "corpus": {"path": str(corpus.path), "sha256": corpus.identity.sha256, "passages": len(corpus)},
        "device": source.device,
    }
    if isinstance(engine, FlatEngine | FaissEngine):
        encoder = engine.encoder
        identity["encoder"] = {"name": encoder.name, "prefixes": encoder.prefixes, "dim": encoder.dim}
    if source.shards > 1:
        identity["shard"] = {"number": source.shard, "of": source.shards, "passages": engine.passages}
    return Retriever(engine, corpus, identity)


def index_fingerprint(index: Path) -> str:
    """Of a file; of a folder that of its largest file."""
    if index.is_dir():
        index = max((path for path in index.iterdir() if path.is_file()), key=lambda path: path.stat().st_size)
    return fingerprint(index)


def _index_of(place: Path | None) -> tuple[Path, Record | None]:
    """The index, and what is recorded of it."""
    if place is None:
        raise InputError("there is nothing to serve", hint="Name a folder of `cloudrl retriever build`, or an index")
    if not place.exists():
        raise InputError(f"there is no index {place}", hint="Make one: cloudrl retriever build --help")
    if place.is_dir() and not is_bm25(place):
        record = read_record(place)
        if record is None:
            raise InputError(
                f"{place} has no finished index",
                hint="Build it, which goes on where it was: cloudrl retriever build --help; or name the index itself",
            )
        index = place / record.index
    else:
        index, record = place, read_record(place.parent)
        record = record if record and record.index == place.name else None
    if not os.access(index, os.R_OK):
        raise InputError(f"{index} is missing, or cannot be read", hint="Build or fetch it again")
    return index, record


def _engine_of(index: Path) -> str:
    if index.is_dir():
        return "bm25"
    return "flat" if is_vector_file(index) else "faiss"


def _check_options(source: Source, index: Path, name: str) -> None:
    if name not in ENGINES:
        raise InputError(f"there is no engine {name!r}", hint=f"Known: {', '.join(ENGINES)}")
    if source.precision not in ("", *PRECISIONS):
        raise InputError(f"vectors cannot be {source.precision}", hint=f"Known: {', '.join(PRECISIONS)}")
    if source.shards > 1 and name != "flat":
        raise InputError(
            f"{index} is of the engine {name}, and only an index of the engine flat can be shared by nodes",
            hint="Leave out --peers and --shard: each node serves all of it",
        )


def _check_memory(source: Source, vectors: VectorFile) -> str:
    needed = vectors.size_bytes // source.shards // (2 if source.is_half else 1)
    if source.device == "cpu":
        map_it = "--precision float32 --from-disk" if source.is_half else "--from-disk"
        return memory.check_host(
            memory.host_memory(),
            needed,
            hint=f"Read it from the disk for each batch, which is slow: {map_it}\nOn a GPU: --device cuda\n"
            "Or use a machine with more memory, or several nodes with --peers that share the index",
            from_disk=source.from_disk and not source.is_half,
        )
    return memory.check_gpu(memory.gpu_memory(source.device), needed)


def _open_corpus(source: Source, index: Path, record: Record | None, on_progress: OnProgress) -> Corpus:
    path = source.corpus or (index.parent / record.corpus if record else None)
    if path is None:
        raise InputError(
            f"{index} has no {index.parent / 'retriever.json'} that names its corpus", hint="--corpus FILE"
        )
    corpus = open_corpus(path, on_progress=lambda done, total: on_progress("reading the corpus", done, total))
    if record:
        check_same("a corpus of sha256", index, record.corpus_sha256, corpus.identity.sha256)
    return corpus


def _check_count(index: Path, count: int, corpus: Corpus) -> None:
    if count != len(corpus):
        raise InputError(
            f"the index {index} has {count:,} passages, and the corpus {corpus.path} {len(corpus):,}",
            hint="Name the corpus that the index was built from: --corpus FILE",
        )


def _open_engine(
    name: str,
    source: Source,
    index: Path,
    vectors: VectorFile | None,
    record: Record | None,
    corpus: Corpus,
    on_progress: OnProgress,
) -> Engine:
    if name == "bm25":
        return Bm25Engine(index)
    wanted = source.encoder or (record.encoder if record else "")
    if not wanted:
        raise InputError(f"nothing says which encoder made {index}", hint="--encoder intfloat/e5-base-v2")
    prefixes = source.prefixes or (record.prefixes if record else "")
    encoder = Encoder(wanted, prefixes=prefixes, device=source.device)
    if vectors is None:
        return FaissEngine(encoder, index, source.faiss_parameters)
    if vectors.dim != encoder.dim:
        raise InputError(
            f"{index} has vectors of {vectors.dim} numbers, but the encoder {wanted} makes {encoder.dim}",
            hint="Name the encoder that the index was built with: --encoder NAME",
        )
    part = rows_of(source.shard, source.shards, vectors.count)
    rows = vectors.rows()[part.start : part.stop]
    if source.sample_check:
        sample = sorted({0, len(rows) // 2, len(rows) - 1})
        check_sample(
            encoder,
            {row + part.start: rows[row] for row in sample},
            {row + part.start: corpus.contents(row + part.start) for row in sample},
        )
    width = vectors.dim * 4
    exact = ExactIndex(
        rows,
        device=source.device,
        half=source.is_half,
        on_progress=lambda done, total: on_progress("reading the index", done * width, total * width),
    )
    return FlatEngine(encoder, exact, part.start)
