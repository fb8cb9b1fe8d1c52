"""Search by words: BM25 with the package bm25s, for which neither an encoder nor a GPU is needed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cloudrl.errors import InputError
from cloudrl.retriever.exact import Hit

_FILE = "params.index.json"


def is_bm25(path: Path) -> bool:
    """Whether it is a folder that `bm25s` has written."""
    return (path / _FILE).is_file()


class Bm25Engine:
    """Looks at all passages that have a word of the query.

    Args:
        path: a folder of `bm25s`; its files are mapped.

    Raises:
        InputError: the package is missing, or cannot read it.
    """

    name = "bm25"

    def __init__(self, path: Path) -> None:
        self._bm25s = import_bm25s()
        try:
            self._index: Any = self._bm25s.BM25.load(path, mmap=True)
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"bm25s cannot read {path}: {error}", hint="Build it again") from error
        self.passages = int(self._index.scores["num_docs"])

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `Engine`. Passages without a word of the query do not count as hits."""
        return [self._best(words, k) for words in _tokens(self._bm25s, queries)]

    def _best(self, words: list[str], k: int) -> list[Hit]:
        token_ids = self._index.get_tokens_ids(words)
        if not token_ids:
            return []
        scores = self._index.get_scores_from_ids(token_ids)
        k = min(k, len(scores))
        least = np.partition(scores, -k)[-k]
        rows = np.flatnonzero(scores >= max(least, np.finfo(scores.dtype).tiny))
        order = np.lexsort((rows, -scores[rows]))[:k]
        return [Hit(int(rows[place]), float(scores[rows[place]])) for place in order]


def build_bm25(texts: Iterable[str], path: Path) -> None:
    """Index texts, in memory, and write the folder whole or not at all."""
    bm25s = import_bm25s()
    index = bm25s.BM25()
    index.index(_tokens(bm25s, list(texts)), show_progress=False)
    part = path.with_name(f".{path.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    index.save(part)
    part.rename(path)


def _tokens(bm25s: Any, texts: Sequence[str]) -> list[list[str]]:
    tokens: list[list[str]] = bm25s.tokenize(list(texts), return_ids=False, show_progress=False)
    return tokens


def import_bm25s() -> Any:
    """The package.

    Raises:
        InputError: it is not installed.
    """
    try:
        import bm25s
    except ImportError as error:
        raise InputError("the engine bm25 needs the package bm25s", hint="pip install bm25s") from error
    return bm25s
