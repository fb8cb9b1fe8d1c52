"""Exact search against brute force in float64, in whatever company a query comes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.errors import InputError
from cloudrl.retriever import exact
from cloudrl.retriever.exact import ExactIndex, Hit

pytestmark = pytest.mark.io  # torch


def brute_force(rows: np.ndarray, query: np.ndarray, k: int) -> list[Hit]:
    scores = [float((row.astype(np.float64) * query.astype(np.float64)).sum()) for row in rows]
    order = sorted(range(len(rows)), key=lambda row: (-scores[row], row))
    return [Hit(row, scores[row]) for row in order[:k]]


@contextmanager
def blocks(rows: int) -> Iterator[None]:
    with mock.patch.multiple(exact, _BLOCK_ROWS=rows, _RESCORED_AT_ONCE=3):
        yield


numbers = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 0.5]),  # ties
    st.floats(-1, 1, width=32),
    st.floats(-1e4, 1e4, width=32),
)
seeds = st.integers(0, 2**32 - 1)


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Rows, many of them equal, queries, and k."""
    count, dim, queries = draw(st.integers(1, 60)), draw(st.integers(1, 9)), draw(st.integers(1, 6))
    random = np.random.default_rng(draw(seeds))
    values = np.array(draw(st.lists(numbers, min_size=1, max_size=8)), np.float32)
    if draw(st.booleans()):
        rows = random.choice(values, (count, dim))
    else:
        rows = random.standard_normal((count, dim)).astype(np.float32)
        rows = rows[random.integers(0, max(1, count // draw(st.integers(1, 20))), count)]
    return rows, random.choice(values, (queries, dim)), draw(st.integers(1, 70))


@given(cases(), st.integers(1, 64), st.booleans())
def test_answers_are_those_of_brute_force(
    case: tuple[np.ndarray, np.ndarray, int], block_rows: int, half: bool
) -> None:
    rows, queries, k = case
    with blocks(block_rows):
        found = ExactIndex(rows, half=half).search(queries, k)
    assert found == [brute_force(rows, query, k) for query in queries]


@given(cases(), seeds)
def test_answers_do_not_depend_on_the_batch(case: tuple[np.ndarray, np.ndarray, int], seed: int) -> None:
    rows, queries, k = case
    index = ExactIndex(rows)
    together = index.search(queries, k)
    chosen = np.random.default_rng(seed).permutation(len(queries))[: 1 + seed % len(queries)]
    assert index.search(queries[chosen], k) == [together[each] for each in chosen]
    assert [index.search(query[None], k)[0] for query in queries] == together


@pytest.mark.parametrize("half", [False, True])
def test_vectors_as_encoders_make_them(half: bool) -> None:
    """Of norm 1, in several blocks; some passages are there many times."""
    random = np.random.default_rng(0)
    rows = random.standard_normal((3000, 96)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[1000:1100] = rows[7]
    rows[2000:2100] = np.nextafter(rows[7], np.copysign(np.float32(2), rows[7]))
    queries = np.concatenate([rows[[7, 2050]], rows[:40] + 0.1 * random.standard_normal((40, 96)).astype(np.float32)])
    with blocks(256):
        found = ExactIndex(rows, half=half).search(queries, 5)
    assert found == [brute_force(rows, query, 5) for query in queries]
    assert [hit.row for hit in found[1]] == [2000, 2001, 2002, 2003, 2004]


@pytest.mark.parametrize("onednn", [False, True])
@pytest.mark.parametrize("count", [1, 2, 8, 9, 40])
def test_vectors_at_odd_addresses(count: int, onednn: bool) -> None:
    """As they are in faiss's files, with and without what torch need not have."""
    assert exact.has_onednn()
    random = np.random.default_rng(0)
    rows = random.standard_normal((1000, 33)).astype(np.float32)
    odd = np.frombuffer(bytes(45) + rows.tobytes(), np.float32, rows.size, 45).reshape(rows.shape)
    assert not odd.flags.aligned
    queries = random.standard_normal((count, 33)).astype(np.float32)
    with blocks(300), mock.patch.object(exact, "has_onednn", return_value=onednn):
        found = ExactIndex(odd).search(queries, 3)
    assert found == [brute_force(rows, query, 3) for query in queries]


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e20])
def test_vectors_that_are_none(value: float) -> None:
    rows = np.ones((5, 3), np.float32)
    rows[3, 1] = value
    with pytest.raises(InputError, match="vectors 0 to 4 is not finite, or too large"):
        ExactIndex(rows)


def test_numbers_that_float16_has_not() -> None:
    rows = np.ones((5, 3), np.float32)
    rows[3, 1] = 70_000
    assert ExactIndex(rows).search(rows[3:4], 1)[0][0].row == 3
    with pytest.raises(InputError, match="vectors 0 to 4 has a number above 65,504") as raised:
        ExactIndex(rows, half=True)
    assert raised.value.hint == "--precision float32"


def test_products_are_those_of_float32() -> None:
    """TF32 of a GPU has ten bits less than what is left out is judged by."""
    torch.set_float32_matmul_precision("high")
    ExactIndex(np.ones((5, 3), np.float32))
    assert torch.get_float32_matmul_precision() == "highest"


def test_many_queries_are_scored_again_in_slices() -> None:
    """All at once, 512 queries for 1,000 passages each would take several GB."""
    rows = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    rows.setflags(write=False)
    with blocks(16), mock.patch.object(exact, "_products", wraps=exact._products) as products:
        found = ExactIndex(rows).search(rows[:20], 1)
    assert [hits[0] for hits in found] == [brute_force(rows, row, 1)[0] for row in rows[:20]]
    assert max(call.args[1].size for call in products.call_args_list) <= 1 + exact._MARGIN


def test_a_query_that_is_not_finite() -> None:
    with pytest.raises(ValueError, match="not finite"):
        ExactIndex(np.ones((5, 3), np.float32)).search(np.array([[1, np.nan, 0]], np.float32), 1)


def test_no_queries() -> None:
    assert ExactIndex(np.ones((5, 3), np.float32)).search(np.empty((0, 3), np.float32), 1) == []
