"""What shards find, merged, is what the whole index finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_exact import brute_force, cases, seeds

from cloudrl.errors import InputError
from cloudrl.retriever.addresses import Address
from cloudrl.retriever.engine import FlatEngine
from cloudrl.retriever.exact import ExactIndex, Hit
from cloudrl.retriever.sharing import Sharing, hits_bytes, merge, read_hits, read_vectors, rows_of, vectors_bytes

pytestmark = pytest.mark.io  # torch


@given(cases(), st.integers(1, 7), seeds, st.booleans())
def test_answers_are_those_of_the_whole_index(
    case: tuple[np.ndarray, np.ndarray, int], shards: int, seed: int, half: bool
) -> None:
    """With many equal rows, in every company, over the bytes that nodes send each other."""
    rows, queries, k = case
    shards = min(shards, len(rows))
    queries = queries[np.random.default_rng(seed).permutation(len(queries))[: 1 + seed % len(queries)]]
    parts = [rows_of(shard, shards, len(rows)) for shard in range(shards)]
    assert [row for part in parts for row in part] == list(range(len(rows)))
    found = []
    for part in parts:
        engine = FlatEngine(None, ExactIndex(rows[part.start : part.stop], half=half), part.start)  # type: ignore[arg-type]
        sent = read_vectors(vectors_bytes(queries), rows.shape[1])
        found.append(read_hits(hits_bytes(engine.search_vectors(sent, k)), len(queries)))
    assert merge(found, k) == [brute_force(rows, query, k) for query in queries]


def test_ties_between_shards_are_by_the_lower_row() -> None:
    parts = [[[Hit(0, 0.5), Hit(2, 0.25)]], [[Hit(5, 1.0), Hit(3, 0.5)]], [[Hit(9, 0.5)]]]
    assert merge(parts, 4) == [[Hit(5, 1.0), Hit(0, 0.5), Hit(3, 0.5), Hit(9, 0.5)]]


@pytest.mark.parametrize("content", [b"1", b"12345678", bytes(40)])
def test_bytes_that_are_no_hits(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"buffer size|reshape"):
        read_hits(content, 2)


def test_addresses() -> None:
    sharing = Sharing.parse("10.0.0.1:8100, [fd00::2]:8100,node-3:1", 1, "s3cret")
    assert sharing.addresses == (Address("10.0.0.1", 8100), Address("fd00::2", 8100), Address("node-3", 1))
    assert str(sharing.address) == "[fd00::2]:8100"
    assert "s3cret" not in repr(sharing)


@pytest.mark.parametrize(
    ("peers", "shard", "token", "said"),
    [
        ("10.0.0.1", 0, "t", "'10.0.0.1' is not HOST:PORT"),
        ("10.0.0.1:0", 0, "t", "is not HOST:PORT"),
        ("10.0.0.1:x", 0, "t", "--peers: "),
        ("me@10.0.0.1:8", 0, "t", "is not HOST:PORT"),
        ("http://10.0.0.1:8", 0, "t", "is not HOST:PORT"),
        ("a:1,", 0, "t", "'' is not HOST:PORT"),
        ("a:1,b:1", 2, "t", "--shard 2: --peers names 2 nodes, so shards are 0 to 1"),
        ("a:1,b:1", -1, "t", "--shard -1"),
        ("a:1,a:1", 0, "t", "names an address twice"),
        ("a:1,b:1", 0, "", "need a token"),
    ],
)
def test_nodes_that_cannot_share(peers: str, shard: int, token: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as raised:
        Sharing.parse(peers, shard, token)
    assert raised.value.hint
