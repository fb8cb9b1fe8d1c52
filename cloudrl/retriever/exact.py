"""The nearest rows of a matrix, exactly: by inner product in float64, ties by the lower row.

Scores of a whole batch are computed in float32, block after block, and what could be among the best is computed again
in float64, in an order of its own. So an answer does not depend on what else is in its batch.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cloudrl.errors import InputError
from cloudrl.retriever.vectors import Floats

if TYPE_CHECKING:
    import torch

    Doubles = npt.NDArray[np.float64]
    Rows = npt.NDArray[np.int64]

_MARGIN = 8
_BLOCK_SCORES = 1 << 21
"""So many scores are held at once on a CPU: 8 MB."""
_BLOCK_ROWS = 1 << 13
_STEP = 8
"""oneDNN makes code for each shape, of almost a MB: so many queries more make another one."""
_GPU_FACTOR = 16
_RESCORED_AT_ONCE = 1 << 12
"""So many rows are multiplied at once in float64: with 768 numbers each, in some 60 MB."""
_LARGEST_NORM = 1e15
"""Products of larger vectors leave float32."""


class Hit(NamedTuple):
    """A row of the corpus that was found, and how well it fits."""

    row: int
    score: float


class ExactIndex:
    """Searches `rows`, which stay where they are; on a GPU, or in float16, a copy is searched.

    Args:
        rows: float32, one vector a row.
        device: of torch.
        half: whether a copy in float16 is searched, which takes half the memory; answers stay exact.
        on_progress: called with the rows that were read, and all of them.

    Raises:
        InputError: a vector is not finite, or too large, also for float16.
    """

    def __init__(
        self,
        rows: Floats,
        *,
        device: str = "cpu",
        half: bool = False,
        on_progress: Callable[[int, int], object] = lambda _done, _total: None,
    ) -> None:
        import torch

        self._rows, self._device = rows, device
        torch.set_float32_matmul_precision("highest")  # `_errors` counts on it: no TF32
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # and nothing writes to it
            self._on_cpu = torch.from_numpy(rows)
        self._searched = self._on_cpu
        if half or device != "cpu":
            kind = torch.float16 if half else torch.float32
            self._searched = torch.empty(rows.shape, dtype=kind, device=device)
        self._norm, self._rounding = self._load(on_progress)

    def __len__(self) -> int:
        return len(self._rows)

    def _load(self, on_progress: Callable[[int, int], object]) -> tuple[float, float]:
        """The longest vector, and how far a vector is from its copy at most; reads all, which is in memory then."""
        import torch

        longest = furthest = 0.0
        for start in range(0, len(self._rows), _BLOCK_ROWS):
            block = self._on_cpu[start : start + _BLOCK_ROWS]
            norm = float(torch.linalg.vector_norm(block, dim=1).max())
            if not norm <= _LARGEST_NORM:  # as NaN is not
                raise InputError(f"one of the vectors {start} to {start + len(block) - 1} is not finite, or too large")
            longest = max(longest, norm)
            if self._searched is not self._on_cpu:
                block = block.to(self._device)
                copy = self._searched[start : start + _BLOCK_ROWS]
                copy.copy_(block)
                furthest = max(furthest, float(torch.linalg.vector_norm(block - copy.float(), dim=1).max()))
                if not math.isfinite(furthest):
                    raise InputError(
                        f"one of the vectors {start} to {start + len(block) - 1} has a number above 65,504, too large "
                        "for float16",
                        hint="--precision float32",
                    )
            on_progress(min(start + _BLOCK_ROWS, len(self._rows)), len(self._rows))
        return longest, furthest

    def search(self, queries: Floats, k: int) -> list[list[Hit]]:
        """The best `k` rows for each query, or all if there are fewer.

        Raises:
            ValueError: a query is not finite.
        """
        if not len(queries):
            return []
        if not np.isfinite(queries).all():
            raise ValueError("the vector of a query is not finite")
        k = min(k, len(self._rows))
        approximate, rows = self._scan(queries, min(k + _MARGIN, len(self._rows)))
        rows.sort(axis=1)
        best: list[list[Hit]] = []
        step = max(1, _RESCORED_AT_ONCE // rows.shape[1])
        for first in range(0, len(queries), step):
            some = rows[first : first + step]
            scores = _products(self._rows, some, queries[first : first + step])
            best += [_best(*candidates, k) for candidates in zip(some, scores, strict=True)]
        if rows.shape[1] < len(self._rows):
            # No row that was left out has a score above `reach`; where that may be enough, all such rows are looked at.
            errors = self._errors(queries)
            reach = approximate.astype(np.float64).min(axis=1) + errors
            least = np.array([hits[-1].score for hits in best])
            if (doubtful := np.flatnonzero(reach >= least)).size:
                again = self._search_above(queries[doubtful], least[doubtful] - errors[doubtful], k)
                for place, hits in zip(doubtful, again, strict=True):
                    best[place] = hits
        return best

    def _errors(self, queries: Floats) -> Doubles:
        """How far a score of `_scan` is from the true one at most.

        A sum of d products is within d * 2^-24 of the sum of their sizes, in whatever order (Higham, Accuracy and
        Stability of Numerical Algorithms, 3.1), which is at most the product of the norms; and numbers too small for
        float32 may count as zero.
        """
        dim = queries.shape[1]
        norms = np.linalg.norm(queries.astype(np.float64), axis=1)
        errors: Doubles = norms * (1.02 * (dim + 2) * 2.0**-24 * self._norm + self._rounding) + dim * 2.0**-125
        return errors

    def _blocks(self, queries: int) -> Iterator[tuple[int, torch.Tensor]]:
        """The first row of each block, and the block."""
        scores, most = _BLOCK_SCORES, _BLOCK_ROWS
        if self._device != "cpu":
            scores, most = scores * _GPU_FACTOR, most * _GPU_FACTOR
        count = max(1, min(most, scores // queries))
        for start in range(0, len(self._rows), count):
            yield start, self._searched[start : start + count].float()

    def _scan(self, queries: Floats, count: int) -> tuple[Floats, Rows]:
        """For each query the `count` rows with the best scores in float32, in any order."""
        import torch

        asked = torch.from_numpy(queries).to(self._device)
        best = torch.empty((len(queries), 0), device=self._device)
        rows = torch.empty((len(queries), 0), dtype=torch.int64, device=self._device)
        for start, block in self._blocks(len(queries)):
            scores, columns = self._scores(block, asked).topk(min(count, len(block)), dim=1, sorted=False)
            best, rows = torch.cat([best, scores], 1), torch.cat([rows, columns + start], 1)
            best, chosen = best.topk(min(count, best.shape[1]), dim=1, sorted=False)
            rows = rows.gather(1, chosen)
        return best.cpu().numpy(), rows.cpu().numpy()

    def _scores(self, block: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
        """Inner products in float32, one row for each query.

        On CPUs by oneDNN, where torch has it: that takes half the time of `@` (torch 2.13 with MKL, AMD's AVX-512), for
        one query a third, also for vectors at the odd addresses of faiss's files. The function is torch's own since
        2.0, for what its compiler makes (aten/src/ATen/native/mkldnn/RegisterMkldnnOpContextClass.cpp).
        """
        import torch

        if self._device != "cpu" or not has_onednn():
            return asked @ block.T
        more = -len(asked) % _STEP if len(asked) > 1 else 0
        padded = torch.nn.functional.pad(asked, (0, 0, 0, more)) if more else asked
        products: torch.Tensor = torch.ops.mkldnn._linear_pointwise(padded, block, None, "none", [], "")  # noqa: SLF001
        return products[: len(asked)]

    def _search_above(self, queries: Floats, least: Doubles, k: int) -> list[list[Hit]]:
        """The best among all rows whose score in float32 is at least `least`, of which each query has `k` or more."""
        import torch

        asked = torch.from_numpy(queries).to(self._device)
        # rounded down: a threshold must not pass over what equals it
        bound = torch.from_numpy(np.nextafter(least.astype(np.float32), np.float32(-np.inf))).to(self._device)
        best: list[list[Hit]] = [[] for _ in queries]
        for start, block in self._blocks(len(queries)):
            above = (self._scores(block, asked) >= bound[:, None]).nonzero().cpu().numpy()
            for query in np.unique(above[:, 0]):
                rows = above[above[:, 0] == query, 1] + start
                for first in range(0, len(rows), _RESCORED_AT_ONCE):
                    some = rows[first : first + _RESCORED_AT_ONCE]
                    scores = _products(self._rows, some[None], queries[query : query + 1])[0]
                    best[query] = _merge(best[query], _best(some, scores, k), k)
        return best


def has_onednn() -> bool:
    """Whether this torch multiplies by oneDNN on CPUs."""
    import torch

    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _products(matrix: Floats, rows: Rows, queries: Floats) -> Doubles:
    """Inner products of queries with rows of their own, in float64, each summed up in the same order."""
    products: Any = matrix[rows].astype(np.float64) * queries[:, None, :].astype(np.float64)
    scores: Doubles = products.sum(axis=-1)
    return scores


def _best(rows: Rows, scores: Doubles, k: int) -> list[Hit]:
    order = np.lexsort((rows, -scores))[:k]
    return [Hit(int(rows[place]), float(scores[place])) for place in order]


def _merge(one: list[Hit], other: list[Hit], k: int) -> list[Hit]:
    return sorted(one + other, key=lambda hit: (-hit.score, hit.row))[:k]
