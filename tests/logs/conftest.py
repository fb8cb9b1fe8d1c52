"""The stand-in cluster, for what reads its logs."""

from collections.abc import Iterator

import pytest
from fake_cluster import FakeCluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """A cluster of two nodes with one GPU each, and an agent."""
    with FakeCluster() as fake:
        yield fake
