"""The stand-in cluster, for what talks to one, and the command line towards it."""

from collections.abc import Iterator

import pytest
from fake_cluster import FakeCluster
from typed_command import Run, Typed


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """A cluster of two nodes with one GPU each, and an agent."""
    with FakeCluster() as fake:
        yield fake


@pytest.fixture
def run(cluster: FakeCluster, run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Type a command towards it, or another address; none for ""."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", str(cluster.token))

    def typed(*words: str, address: str | None = None) -> Typed:
        return run(*words, *([] if address == "" else ["--address", address or cluster.url]))

    return typed
