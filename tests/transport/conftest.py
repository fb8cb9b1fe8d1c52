"""The stand-in cluster, for what talks to one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

from fake_cluster import FakeCluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """A cluster of two nodes with one GPU each, and an agent."""
    with FakeCluster() as fake:
        yield fake
