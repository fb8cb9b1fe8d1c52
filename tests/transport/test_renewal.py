"""A cluster that was started again has new tokens; who holds the old ones reads them again."""

from dataclasses import replace

import pytest

from cloudrl.errors import ClusterFailed, ConnectionFailed, FailedError, Unauthorized
from cloudrl.jobs import find_job
from cloudrl.protocol.backoff import Backoff
from cloudrl.testing import FakeCluster
from cloudrl.transport import Connection, inspect_cluster


class Provider:
    """Reads the token of a cluster; the stand-in for ssh."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster, self.asked, self.end = cluster, 0, ""

    def connect(self) -> Connection:
        return replace(self.cluster.connection(), token_source=self)

    def refresh(self, refused: str) -> Connection:
        assert refused
        self.asked += 1
        return self.connect()

    def ensure_alive(self) -> None:
        if self.end:
            raise ClusterFailed(self.end)


@pytest.fixture
def provider(cluster: FakeCluster) -> Provider:
    return Provider(cluster)


def start_again(cluster: FakeCluster) -> None:
    """With new tokens and no jobs, as dstack's resubmission does."""
    cluster.token = cluster.agent_token = "newer-token"
    cluster.jobs.clear()


def test_a_refused_token_is_read_again(provider: Provider) -> None:
    connection = provider.connect()
    start_again(provider.cluster)
    assert inspect_cluster(connection).name == "lab"
    assert connection.ray().version()["ray_version"]
    assert provider.asked == 2  # once for the agent's, once for Ray's


def test_a_token_that_stays_refused_is_told(provider: Provider) -> None:
    """The provider's cluster is another one than the one that answers."""
    connection = replace(provider.connect(), agent_token="of another", ray_token="of another")
    provider.connect = lambda: connection  # type: ignore[method-assign]
    with pytest.raises(Unauthorized, match="another cluster may have taken this port") as caught:
        inspect_cluster(connection)
    assert caught.value.hint == "Reconnect to lab: cloudrl detach lab; cloudrl attach lab"
    assert provider.asked == 1


def test_who_follows_is_told_that_the_job_is_gone(provider: Provider) -> None:
    provider.cluster.add("job-1", b"line 0\nline 1\n", metadata={"job_name": "mine"})
    events = find_job(provider.connect(), "job-1").follow(lines=True, sleep=lambda _: None)
    assert [getattr(next(events), "text", None) for _ in range(2)] == ["line 0", "line 1"]
    start_again(provider.cluster)
    with pytest.raises(FailedError, match="its jobs are gone") as caught:
        list(events)
    assert "--name mine" in str(caught.value.hint)


def test_who_follows_does_not_wait_for_a_cluster_that_is_over(provider: Provider) -> None:
    provider.cluster.add("job-1", b"line 0\n")
    events = find_job(provider.connect(), "job-1").follow(lines=True, sleep=lambda _: None)
    next(events)
    provider.cluster.is_up = False
    provider.end = "cluster 'lab' is over: terminated"
    with pytest.raises(ClusterFailed, match="is over"):
        list(events)


def test_without_a_provider_nothing_is_read_again(provider: Provider) -> None:
    connection = replace(provider.connect(), token_source=None)
    start_again(provider.cluster)
    with pytest.raises(Unauthorized):
        inspect_cluster(connection)
    with pytest.raises(Unauthorized):
        connection.ray().version()


def test_who_follows_waits_while_there_are_no_new_tokens_yet(provider: Provider) -> None:
    """The run is being started: its head has no machine."""
    provider.cluster.add("job-1", b"line 0\n")
    said: list[str] = []
    connection = provider.connect()
    follow = find_job(connection, "job-1").follow(
        lines=True,
        backoff=Backoff(give_up_s=1e9),
        sleep=lambda _: None,
        on_break=lambda error: said.append(error.message),
    )
    next(follow)

    def refresh(_refused: str) -> Connection:
        if len(said) < 3:
            raise ConnectionFailed("no machine yet")
        return Provider(provider.cluster).connect()

    provider.refresh = refresh  # type: ignore[method-assign]
    start_again(provider.cluster)
    with pytest.raises(FailedError, match="its jobs are gone"):
        list(follow)
    assert said == ["no machine yet"] * 3
