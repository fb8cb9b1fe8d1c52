"""What a job needs to know of the cluster it goes to."""

from dataclasses import replace

import pytest

from cloudrl.errors import ClusterFailed, ConnectionFailed
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.wire import from_json
from cloudrl.testing import AGENT_URL, RAY_URL, FakeCluster
from cloudrl.testing_answers import ray_node
from cloudrl.transport import Connection, inspect_cluster


def test_a_cluster_with_agents(cluster: FakeCluster) -> None:
    assert inspect_cluster(cluster.connection()) == from_json(ClusterFacts, cluster.status["facts"])
    assert [path for _, path in cluster.requests] == ["/v1/status"]
    assert inspect_cluster(replace(cluster.connection(), cluster_id=None)).id == "id-1", "nobody knows it yet"


def test_another_cluster_on_the_same_port(cluster: FakeCluster) -> None:
    """A tunnel that was opened again, and leads elsewhere: no job must ever go there."""
    connection = cluster.connection()
    cluster.status["facts"].update(name="other", id="id-2")
    with pytest.raises(ConnectionFailed) as caught:
        inspect_cluster(connection)
    for word in ("'other' (id-2)", "'lab' (id-1)", AGENT_URL):
        assert word in caught.value.message


@pytest.mark.parametrize("phase", ["start", "setup", "preflight", "ray", "fetch", "barrier", "failed", "ended"])
def test_a_cluster_that_is_not_ready(cluster: FakeCluster, phase: str) -> None:
    cluster.status["phase"] = phase
    with pytest.raises(ClusterFailed, match=f"cluster 'lab' is not ready: its phase is {phase}") as caught:
        inspect_cluster(cluster.connection())
    assert caught.value.hint == "cloudrl status lab"


@pytest.mark.parametrize(
    ("gpus", "nodes", "each"),
    [
        ([8, 8], 2, 8),
        ([8, 4], 2, 4),  # as many as the smallest: verl takes the same number on every node
        ([0, 8, 8], 2, 8),  # a head without GPUs
        ([0, 0], 0, 0),
        ([0.5, 1], 2, 0),
    ],
)
def test_plain_nodes_are_counted_by_their_gpus(cluster: FakeCluster, gpus: list[float], nodes: int, each: int) -> None:
    cluster.nodes = [ray_node(f"10.0.0.{index + 1}", count) for index, count in enumerate(gpus)]
    plain = Connection(RAY_URL, RAY_URL, cluster.token, send=cluster.send)
    facts = ClusterFacts(RAY_URL, "", "", nodes, gpu_nodes=nodes, gpus_per_node=each)
    assert inspect_cluster(plain) == facts


def test_secrets_do_not_show(cluster: FakeCluster) -> None:
    assert str(cluster.token) not in repr(cluster.connection())


def test_what_a_raw_ray_job_submit_needs() -> None:
    env = {"RAY_ADDRESS": "http://127.0.0.1:8265", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "secret"}
    assert Connection("lab", "http://127.0.0.1:8265", "secret").env == env
    env = {"RAY_ADDRESS": "http://127.0.0.1:8265", "RAY_AUTH_MODE": "disabled"}
    assert Connection("lab", "http://127.0.0.1:8265").env == env
