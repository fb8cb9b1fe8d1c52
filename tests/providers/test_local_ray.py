"""Clusters on this machine with the real Ray."""

from __future__ import annotations

import http.client
import json
import os
import socket
import stat
import struct
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import other_user
import pytest
from node_harness import MARK, processes_with, until

from cloudrl.errors import Unauthorized
from cloudrl.providers.local import processes
from cloudrl.providers.local.provider import LocalProvider
from cloudrl.transport import RayClient, inspect_cluster

if TYPE_CHECKING:
    from conftest import Home

    from cloudrl.providers.local.plan import LocalPlan
    from cloudrl.providers.local.state import LocalState
    from cloudrl.transport import Connection

pytestmark = pytest.mark.ray
provider = LocalProvider()


def _plan(home: Home, name: str, nodes: int) -> LocalPlan:
    return home.plan(name, nodes=nodes, python=sys.executable)


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
    one, two = _plan(home, "one", 2), _plan(home, "two", 1)
    connection = provider.up(one, timeout_s=300)
    try:
        other = provider.up(two, timeout_s=300)
        assert provider.status("one").nodes[0].phase == "ready"
        ours = processes_with(MARK, os.environ[MARK]).keys() - {os.getpid()}
        assert processes.of_cluster(one.state.id) | processes.of_cluster(two.state.id) >= ours
        seen = inspect_cluster(connection)
        assert (seen.nodes, seen.device, seen.id) == (2, "cpu", one.state.id)
        assert _gpus_and_cpus(connection) == [(1, 8), (1, 8)]
        assert len(RayClient(other.ray_url, other.ray_token).nodes()) == 1
        _dashboard_is_for_this_machine_and_this_token_only(one)
        with pytest.raises(Unauthorized):
            RayClient(other.ray_url, connection.ray_token).nodes()
        _nothing_is_served_without_a_token(one.state)
        _another_user_gets_nothing(one.state)
        assert _listening(one.state.agent_ports[1]) == {"127.0.0.1", one.state.ip} - {"0.0.0.0", "::"}
    finally:
        assert provider.down("two") is True
        assert provider.down("one") is True
    for plan in (one, two):
        _nothing_is_left(plan.state)


def _gpus_and_cpus(connection: Connection) -> list[tuple[float, float]]:
    """Of each node, as Ray itself counts them."""
    request = urllib.request.Request(
        f"{connection.ray_url}/api/v0/nodes?detail=1", headers={"Authorization": f"Bearer {connection.ray_token}"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        nodes = json.load(answer)["data"]["result"]["result"]
    return [(node["resources_total"]["GPU"], node["resources_total"]["CPU"]) for node in nodes]


def _dashboard_is_for_this_machine_and_this_token_only(plan: LocalPlan) -> None:
    port = plan.state.dashboard_port
    assert _listening(port) == {"127.0.0.1"}
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/api/jobs/", timeout=60).close()
    caught.value.close()
    assert caught.value.code == 401


def _nothing_is_served_without_a_token(state: LocalState) -> None:
    """Ray's metrics were; its remote procedure calls answer no plain HTTP, and ask for the token themselves."""
    ports = set().union(*map(_ports_of, processes.of_cluster(state.id)))
    assert {*state.agent_ports, state.dashboard_port} < ports
    for port in ports:
        for path in ("/", "/metrics"):
            assert not _is_served(f"http://{state.ip}:{port}{path}"), f"{port}{path}"


def _another_user_gets_nothing(state: LocalState) -> None:
    """Ray makes folders that everybody may write to, and jobs' code would be among what is in there."""
    if os.geteuid() != 0:
        return
    session = Path(state.ray_temp_dir, "0", "session_latest")
    code = session / "runtime_resources" / "working_dir_files"
    assert (code.parent.stat().st_mode | session.stat().st_mode) & stat.S_IWOTH, "as Ray 2.60 makes them"
    for script in ('ls "$1"', 'cat "$1/logs/raylet.out"', 'mkdir "$1/runtime_resources/mine"', 'echo >"$1/logs/mine"'):
        assert other_user.run(script, session).returncode != 0, script
    assert other_user.run('mv "$1" "$1-gone"', state.ray_temp_dir).returncode != 0


def _ports_of(process: int) -> set[int]:
    """Of all addresses at which a process listens."""
    links = [os.readlink(each) for each in Path(f"/proc/{process}/fd").iterdir()]
    rows = [line.split() for file in ("tcp", "tcp6") for line in Path("/proc/net", file).read_text().splitlines()[1:]]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in links}


def _is_served(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except (OSError, http.client.HTTPException):
        return False


def _nothing_is_left(state: LocalState) -> None:
    assert processes.of_cluster(state.id) == set()
    assert not Path(state.ray_temp_dir).exists()
    for port in state.ports:
        assert _listening(port) == set()


@pytest.mark.parametrize("phase", [pytest.param("ray", marks=pytest.mark.slow), "barrier"])
def test_a_starter_that_is_killed_leaves_nothing(home: Home, phase: str) -> None:
    killed = home.kill_starter(phase, python=sys.executable)
    provider.down("one")
    _nothing_is_left(killed)


def test_a_raylet_that_dies_ends_the_cluster_with_a_clear_line(home: Home) -> None:
    plan = _plan(home, "one", 1)
    provider.up(plan, timeout_s=300)
    raylets = [pid for pid in processes.of_cluster(plan.state.id) if _name(pid) == "raylet"]
    assert len(raylets) == 1
    os.kill(raylets[0], 9)
    until(lambda: provider.status("one").has_failed, "the end of Ray is seen")
    assert "Ray's processes on rank 0 ended" in provider.status("one").reason
    provider.down("one")
    _nothing_is_left(plan.state)


def _name(pid: int) -> str:
    try:
        return Path("/proc", str(pid), "comm").read_text().strip()
    except OSError:
        return ""
