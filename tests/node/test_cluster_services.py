"""Services beside Ray: READY waits for them, their end is the node's end, and nothing of them is left."""

import os
import signal
import socket
import urllib.request

import pytest
from node_harness import IP, Maker, Scenarios, free_ports, until

from cloudrl.node.ray import probe

pytestmark = pytest.mark.agents

scenario = Scenarios()


def _server(port: int, *, exec_: str = "exec ") -> str:
    return f"{exec_}python3 -m http.server {port} --bind {IP}"


@scenario
def a_cluster_is_ready_when_its_services_answer(nodes: Maker) -> None:
    """As a retrieval server that loads its index for minutes, one on every node."""
    cluster, ports = nodes(2), free_ports(2)
    gate = cluster.folder / "gate"
    loading = f"echo loading; while ! test -e {gate}; do sleep 0.05; done"
    for rank, port in enumerate(ports):
        cluster.start_one(rank, f"--service={port}:{loading}; {_server(port, exec_='')}")
    for rank, port in enumerate(ports):
        cluster[rank].await_detail(f"waiting for the service on port {port}")
    assert [cluster[rank].status()["nodes"][0]["fetched"] for rank in (0, 1)] == [False, False]
    gate.touch()
    cluster.ready()
    for rank, port in enumerate(ports):
        with urllib.request.urlopen(f"http://{IP}:{port}/", timeout=10) as answer:
            assert answer.status == 200
        assert (cluster[rank].run_dir / f"service-{port}.log").read_text().startswith("loading\n")
    cluster.end()
    assert [probe(IP, port) for port in ports] == ["refused", "refused"]
    assert cluster.processes() == {}


@scenario
def a_service_that_cannot_start_is_final_at_its_second_time(nodes: Maker) -> None:
    cluster, [port] = nodes(2), free_ports(1)
    command = "echo no index at /the/path; exit 3"
    for code in (1, 0):
        cluster.start_one(0)
        cluster.start_one(1, f"--service={port}:{command}")
        reason = f"rank 1, service: `{command}`, the service on port {port}, ended with status 3"
        assert cluster.failed(code) == reason
    for node in cluster.started.values():
        assert "the last lines of its log:\nno index at /the/path\n" in node.text()
        assert (node.failure().kind, node.failure().permanent) == ("service", True)


@scenario
def a_service_that_goes_to_the_background_is_told_not_to(nodes: Maker) -> None:
    cluster, [port] = nodes(1), free_ports(1)
    cluster.start(f"--service={port}:nohup {_server(port, exec_='')} &")
    assert cluster.failed().endswith(" ended with status 0; it has to stay in the foreground")
    assert cluster.processes() == {}


@scenario
def a_service_that_does_not_answer(nodes: Maker) -> None:
    cluster, [port] = nodes(1), free_ports(1)
    cluster.start(f"--service={port}:echo this far; exec sleep 600", "--fetch-timeout-s=2")
    reason = f"`echo this far; exec sleep 600` does not answer on port {port} after 2 s"
    assert cluster.failed() == f"rank 0, service: {reason}"
    assert "the last lines of its log:\nthis far\n" in cluster[0].text()


@scenario
def somebody_else_at_the_port_is_not_taken_for_the_service(nodes: Maker) -> None:
    with socket.create_server((IP, 0)) as other:
        port = other.getsockname()[1]
        reason = nodes(1).start(f"--service={port}:{_server(port)}").failed()
    assert reason == f"rank 0, service: ports of services are in use on this node: {port}"


@scenario
def a_service_that_ends_later_ends_the_cluster_which_a_retry_may_cure(nodes: Maker) -> None:
    cluster, [port] = nodes(2), free_ports(1)
    cluster.start_one(0)
    cluster.start_one(1, f"--service={port}:{_server(port)}")
    cluster.ready()
    [server] = [pid for pid, line in cluster.processes().items() if line.startswith("python3 -m http.server")]
    os.kill(server, signal.SIGKILL)
    assert cluster.failed().endswith(f"the service on port {port}, ended with status -9")


@scenario
def two_services_of_one_node_and_the_variables_of_its_processes(nodes: Maker) -> None:
    cluster, ports = nodes(1), free_ports(2)
    cluster.start(*(f"--service={port}:echo rank $CLOUDRL_NODE_RANK; {_server(port)}" for port in ports)).ready()
    for port in ports:
        assert (cluster[0].run_dir / f"service-{port}.log").read_text().splitlines()[0] == "rank 0"
    assert len([line for line in cluster.processes().values() if line.startswith("python3 -m http.server")]) == 2


@scenario
def what_a_set_up_command_leaves_in_the_background_lives_as_long_as_the_node(nodes: Maker) -> None:
    """Nobody waits for it and its end is not noticed, but it is not ended early, and it does not stay."""
    cluster, [port] = nodes(1), free_ports(1)
    cluster.start(f"--setup=nohup {_server(port, exec_='')} > /dev/null 2>&1 &").ready()
    until(lambda: probe(IP, port) == "open", "the server answers")
    cluster.end()
    assert probe(IP, port) == "refused"
    assert cluster.processes() == {}


test_scenario = scenario.test()
