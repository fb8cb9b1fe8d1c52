"""What the server needs of an engine, and the two that have vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from cloudrl.errors import InputError
from cloudrl.retriever.encoder import Encoder
from cloudrl.retriever.exact import ExactIndex, Hit
from cloudrl.retriever.vectors import Floats

ENGINES = ("flat", "bm25", "faiss")


class Found(NamedTuple):
    """A passage as it is sent, and its score."""

    document: bytes
    score: float


class Searches(Protocol):
    """What a server serves: a `Retriever`, or a search of the web.

    Attributes:
        identity: what it serves, for a program.
    """

    identity: dict[str, Any]

    def search(self, queries: Sequence[str], k: int) -> Sequence[list[Found] | Exception]:
        """For each query at most `k` passages, the best first, or why it alone cannot be answered."""


class Engine(Protocol):
    """Finds passages. It is asked from one thread."""

    @property
    def name(self) -> str:
        """One of `ENGINES`."""

    @property
    def passages(self) -> int:
        """How many it knows."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """For each query at most `k`, the best first."""


class FlatEngine:
    """All vectors are looked at: the answers are exact.

    Args:
        encoder: makes the vectors of queries.
        index: the vectors of passages.
        first_row: the passage that the first of them belongs to.
    """

    name = "flat"

    def __init__(self, encoder: Encoder, index: ExactIndex, first_row: int = 0) -> None:
        self.encoder, self._index, self._first_row = encoder, index, first_row
        self.passages = len(index)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `Engine`."""
        return self.search_vectors(self.encoder.encode_queries(queries), k)

    def search_vectors(self, vectors: Floats, k: int) -> list[list[Hit]]:
        """The same for queries that are encoded already.

        Raises:
            ValueError: one is not finite.
        """
        results = self._index.search(vectors, k)
        if self._first_row:
            return [[Hit(row + self._first_row, score) for row, score in hits] for hits in results]
        return results


class FaissEngine:
    """Any index that faiss reads, such as HNSW, on CPUs. What it finds is its own affair, but ties are in order.

    Args:
        encoder: makes the vectors.
        path: the index.
        parameters: of the search, as faiss writes them: `efSearch=128`.

    Raises:
        InputError: faiss is missing, or cannot read it.
    """

    name = "faiss"

    def __init__(self, encoder: Encoder, path: Path, parameters: str = "") -> None:
        faiss = self._faiss = import_faiss()
        try:
            self._index: Any = faiss.read_index(str(path))
            if parameters:
                faiss.ParameterSpace().set_index_parameters(self._index, parameters)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise InputError(f"faiss cannot read {path}, or set {parameters!r}: {reason}") from error
        if self._index.d != encoder.dim:
            raise InputError(f"{path} has vectors of {self._index.d} numbers, but {encoder.name} makes {encoder.dim}")
        self.encoder = encoder
        self.passages: int = self._index.ntotal
        self._ascends = self._index.metric_type == faiss.METRIC_L2

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `Engine`. Where faiss finds fewer, there are fewer."""
        import torch

        vectors = self.encoder.encode_queries(queries)
        self._faiss.omp_set_num_threads(torch.get_num_threads())  # which holds for the thread that calls it alone
        scores, rows = self._index.search(vectors, k)
        return [self._hits(*pair) for pair in zip(rows.tolist(), scores.tolist(), strict=True)]

    def _hits(self, rows: list[int], scores: list[float]) -> list[Hit]:
        hits = [Hit(row, score) for row, score in zip(rows, scores, strict=True) if row >= 0]
        return sorted(hits, key=lambda hit: (hit.score if self._ascends else -hit.score, hit.row))


def import_faiss() -> Any:
    """The package, set to multiply matrices whatever the size of a batch (it would from 167 queries of 768 on).

    Raises:
        InputError: it is not installed.
    """
    try:
        import faiss
    except ImportError as error:
        raise InputError("the engine faiss needs the package faiss-cpu", hint="pip install faiss-cpu") from error
    faiss.cvar.distance_compute_blas_threshold = 1  # faiss 1.15, utils/distances.cpp
    return faiss


def check_sample(encoder: Encoder, vectors: dict[int, Floats], passages: dict[int, str], least: float = 0.98) -> None:
    """Refuse an index whose vectors are not those of the passages by this encoder.

    Args:
        encoder: of the queries to come.
        vectors: some, by their row.
        passages: their texts.
        least: cosine of what is the same but for rounding.

    Raises:
        InputError: they are others.
    """
    made = encoder.encode_passages(list(passages.values()))
    for (row, old), new in zip(vectors.items(), made, strict=True):
        cosine = float(old @ new / (np.linalg.norm(old) * np.linalg.norm(new) + 1e-12))
        if not cosine >= least:
            raise InputError(
                f"the vector of passage {row} is not what {encoder.name} makes of it with the prefixes "
                f"{encoder.prefixes!r}: the cosine is {cosine:.3f}, not above {least}",
                hint="Is it this corpus, this encoder, these prefixes? To serve it all the same: --no-sample-check",
            )
