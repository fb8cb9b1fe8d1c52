"""The stand-in cluster, in memory and on sockets, and time that passes by sleeping."""

from collections.abc import Iterator

import pytest
from fake_cluster import FakeCluster as ServedCluster

from cloudrl.testing import FakeCluster


@pytest.fixture
def cluster() -> FakeCluster:
    """A cluster of two nodes with one GPU each, and an agent."""
    fake = FakeCluster()
    fake.chunk_bytes = 7
    return fake


@pytest.fixture
def served() -> Iterator[ServedCluster]:
    """The same behind real sockets."""
    with ServedCluster() as fake:
        yield fake
