"""Clusters on this machine with the real Ray."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from child_processes import ended
from node_harness import until

from cloudrl.errors import InputError, Unauthorized
from cloudrl.providers.local import ports, processes
from cloudrl.providers.local.provider import LocalProvider
from cloudrl.spec import Cluster
from cloudrl.transport import RayClient, inspect_cluster

if TYPE_CHECKING:
    from conftest import Home

    from cloudrl.providers.local.plan import LocalPlan
    from cloudrl.transport import Connection

pytestmark = pytest.mark.ray
provider = LocalProvider()


def _plan(home: Home, name: str, nodes: int) -> LocalPlan:
    [dashboard_port] = ports.free_ports(1, cluster=name)  # not 8265, which another Ray here may want
    cluster = Cluster.load({"name": name, "nodes": nodes, "models": [str(home.folder / "model")]})
    plan = provider.plan(cluster, dashboard_port=dashboard_port)
    home.plans.append(plan)
    return plan


def _listening(port: int) -> set[str]:
    """IPv4 and IPv6 addresses on which somebody listens at a port (proc(5), /proc/net/tcp)."""
    found = set()
    for file, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path("/proc/net", file).read_text().splitlines()[1:]:
            address, at = line.split()[1].split(":")
            if line.split()[3] == "0A" and int(at, 16) == port:
                words = [int(address[i : i + 8], 16) for i in range(0, len(address), 8)]
                found.add(socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words)))
    return found


def test_two_clusters_from_up_to_down(home: Home) -> None:
    looks = []
    one = _plan(home, "one", 2)
    connection = provider.up(one, on_status=looks.append, timeout_s=300)
    two = _plan(home, "two", 1)
    try:
        other = provider.up(two, timeout_s=300)
        assert looks[-1].is_ready
        assert provider.attach("one") == connection
        assert provider.status("one").nodes[0].phase == "ready"
        with pytest.raises(InputError, match="cluster 'one' is up already") as caught:
            provider.up(_plan(home, "one", 1))
        assert caught.value.exit_code == 2
        seen = inspect_cluster(connection)
        assert (seen.nodes, seen.device, seen.id) == (2, "cpu", one.state.id)
        assert _gpus_and_cpus(connection) == [(1, 8), (1, 8)]
        assert len(RayClient(other.ray_url, other.ray_token).nodes()) == 1
        _dashboard_is_for_this_machine_and_this_token_only(one)
        with pytest.raises(Unauthorized):
            RayClient(other.ray_url, connection.ray_token).nodes()
        assert _listening(one.state.agent_ports[1]) == {"127.0.0.1", one.state.ip} - {"0.0.0.0", "::"}
    finally:
        assert provider.down("two") is True
        assert provider.down("one") is True
    for plan in (one, two):
        _nothing_is_left(plan)


def _gpus_and_cpus(connection: Connection) -> list[tuple[float, float]]:
    """Of each node, as Ray itself counts them."""
    request = urllib.request.Request(
        f"{connection.ray_url}/api/v0/nodes?detail=1",
        headers={"Authorization": f"Bearer {connection.ray_token}"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        nodes = json.load(answer)["data"]["result"]["result"]
    return [(node["resources_total"]["GPU"], node["resources_total"]["CPU"]) for node in nodes]


def _dashboard_is_for_this_machine_and_this_token_only(plan: LocalPlan) -> None:
    port = plan.state.dashboard_port
    assert _listening(port) == {"127.0.0.1"}
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/api/jobs/", timeout=10).close()
    caught.value.close()
    assert caught.value.code == 401


def _nothing_is_left(plan: LocalPlan) -> None:
    state = plan.state
    assert processes.of_cluster(state.id) == set()
    assert not Path(state.ray_temp_dir).exists()
    for port in (state.gcs_port, state.dashboard_port, state.client_port, *state.agent_ports):
        assert _listening(port) == set()


STARTER = """
import json, sys, time
from dataclasses import asdict
from cloudrl.providers.local.provider import LocalProvider
from cloudrl.spec import Cluster

provider = LocalProvider()
plan = provider.plan(Cluster.load({"name": "one", "nodes": 2, "models": [sys.argv[1]]}))

def look(status):
    if [node.phase for node in status.nodes].count(sys.argv[2]) >= 1:
        print(json.dumps(asdict(plan.state)), flush=True)
        time.sleep(600)

provider.up(plan, on_status=look)
"""


@pytest.mark.parametrize("phase", ["ray", "barrier"])
def test_a_starter_that_is_killed_leaves_nothing(home: Home, phase: str) -> None:
    words = [sys.executable, "-c", STARTER, str(home.folder / "model"), phase]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=os.environ) as starter, ended(starter):
        assert starter.stdout is not None
        killed = json.loads(starter.stdout.readline())
        assert processes.of_cluster(killed["id"])
    provider.down("one")
    assert processes.of_cluster(killed["id"]) == set()
    assert not Path(killed["ray_temp_dir"]).exists()


def test_a_raylet_that_dies_ends_the_cluster_with_a_clear_line(home: Home) -> None:
    plan = _plan(home, "one", 1)
    provider.up(plan, timeout_s=300)
    raylets = [pid for pid in processes.of_cluster(plan.state.id) if _name(pid) == "raylet"]
    assert len(raylets) == 1
    os.kill(raylets[0], 9)
    until(lambda: provider.status("one").has_failed, "the end of Ray is seen")
    assert "Ray's processes on rank 0 ended" in provider.status("one").reason
    provider.down("one")
    _nothing_is_left(plan)
    with pytest.raises(InputError):
        provider.attach("one")


def _name(pid: int) -> str:
    try:
        return Path("/proc", str(pid), "comm").read_text().strip()
    except OSError:
        return ""
