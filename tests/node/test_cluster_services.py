"""Services beside Ray: READY waits for them, their end is the node's end, and nothing of them is left."""

import os
import signal
import socket
import urllib.request

import pytest
from node_harness import IP, KEY, Maker, Scenarios, until
from quiet_ports import free_ports

from cloudrl.node.ray import probe
from cloudrl.protocol.services import Artifact, Service
from cloudrl.protocol.tokens import derive

pytestmark = pytest.mark.agents

scenario = Scenarios()


def _server(port: "int | str", *, exec_: str = "exec ") -> str:
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
        with urllib.request.urlopen(f"http://{IP}:{port}/", timeout=60) as answer:
            assert answer.status == 200
        assert (cluster[rank].run_dir / f"service-{port}.log").read_text().startswith("loading\n")
    cluster.end()
    assert [probe(IP, port) for port in ports] == ["refused", "refused"]
    assert cluster.processes() == {}


@scenario
def a_service_that_cannot_start_is_a_permanent_failure(nodes: Maker) -> None:
    cluster, [port] = nodes(2), free_ports(1)
    command = "echo no index at /the/path; exit 3"
    cluster.start_one(0)
    cluster.start_one(1, f"--service={port}:{command}")
    said = "it said last: no index at /the/path"
    reason = f"rank 1, service: `{command}`, the service on port {port}, ended with status 3; {said}"
    assert cluster.failed() == reason
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
    taken = f"rank 0, service: ports of services are in use on this node: {port}"
    assert reason == f"{taken} -> another `port`, where jobs share a node"


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


@scenario
def a_service_that_is_killed_is_started_again_while_the_cluster_stays_ready(nodes: Maker) -> None:
    cluster, [port] = nodes(2), free_ports(1)
    cluster.start_one(0)
    cluster.start_one(1, f"--service={Service(port, _server('$PORT'), health='/', restart=1)}")
    cluster.ready()
    [server] = [pid for pid, line in cluster.processes().items() if line.startswith("python3 -m http.server")]
    os.kill(server, signal.SIGKILL)
    label = str(port)
    until(lambda: cluster[0].agent.status().nodes[1].services == {label: "started again, 1 of 1"}, "rank 0 hears of it")
    until(lambda: cluster[0].agent.status().nodes[1].services == {label: "ready"}, "it is ready again")
    assert [cluster[rank].phase() for rank in (0, 1)] == ["ready", "ready"]
    assert "ended with status -9; started again in 5 s (1 of 1)" in cluster[1].text()
    [server] = [pid for pid, line in cluster.processes().items() if line.startswith("python3 -m http.server")]
    os.kill(server, signal.SIGKILL)
    assert cluster.failed().endswith("ended with status -9; it was started again 1 times")
    assert cluster.processes() == {}


@scenario
def what_a_service_has_started_does_not_keep_its_port(nodes: Maker) -> None:
    cluster, [port] = nodes(1), free_ports(1)
    command = f"{_server('$PORT', exec_='')} & echo shell $$; wait"
    cluster.start(f"--service={Service(port, command, health='/', restart=1)}").ready()
    log = cluster[0].run_dir / f"service-{port}.log"
    os.kill(int(log.read_text().split()[1]), signal.SIGKILL)
    until(lambda: log.read_text().count("shell") == 2, "it is started again")
    until(lambda: cluster[0].agent.status().nodes[0].services == {str(port): "ready"}, "it is ready again")
    assert len([line for line in cluster.processes().values() if line.startswith("python3 -m http.server")]) == 1


@scenario
def a_service_is_started_when_its_files_are_there(nodes: Maker) -> None:
    """Both nodes fetch, each into its own folder; what a worker lacks holds up the cluster, and is named."""
    cluster, ports = nodes(2), free_ports(2)
    gate = cluster.folder / "gate"
    made = Artifact("index", f"while ! test -e {gate}; do sleep 0.05; done; echo rows > index")
    for rank, port in enumerate(ports):
        service = Service(port, f"cat $CLOUDRL_ARTIFACTS/index/index; {_server('$PORT')}", "search", needs=("index",))
        cluster.start_one(rank, f"--artifact={made}", f"--service={service}")
    until(lambda: all(cluster[rank].phase() == "fetch" for rank in (0, 1)), "Ray is up on both")
    assert [probe(IP, port) for port in ports] == ["refused", "refused"]
    gate.touch()
    cluster.ready()
    for rank, port in enumerate(ports):
        assert (cluster[rank].run_dir / f"service-{port}.log").read_text().startswith("rows\n")
    status = cluster[0].agent.status()
    assert [node.services for node in status.nodes] == [{"search": "ready"}] * 2
    assert status.facts.services == ("search",)


@scenario
def services_that_ask_each_other_know_all_addresses_and_a_token(nodes: Maker) -> None:
    cluster, ports, peer_ports = nodes(3), free_ports(3), free_ports(3)
    told = 'echo "$RANK of $PEERS"; cat $CLOUDRL_PEER_TOKEN_FILE; echo'
    for rank in (2, 0, 1):
        service = Service(ports[rank], f"{told}; {_server('$PORT')}", "search", peer_port=peer_ports[rank])
        cluster.start_one(rank, f"--service={service}")
    cluster.ready()
    peers = ",".join(f"{IP}:{port}" for port in peer_ports)
    for rank, port in enumerate(ports):
        lines = (cluster[rank].run_dir / f"service-{port}.log").read_text().splitlines()
        assert lines[:2] == [f"{rank} of {peers}", derive(KEY).peers]


@scenario
def one_node_fetches_into_a_folder_that_is_shared(nodes: Maker) -> None:
    cluster = nodes(2)
    made = Artifact("index", "echo $CLOUDRL_NODE_RANK >> ranks")
    cluster.start(f"--artifact={made}", f"--data-dir={cluster.folder}/shared").ready()
    assert (cluster.folder / "shared/artifacts/index/ranks").read_text() == "0\n"
    assert [node.artifacts for node in cluster[0].agent.status().nodes] == [
        {"index": f"{cluster.folder}/shared/artifacts/index"}
    ] * 2


@scenario
def an_artifact_that_cannot_be_had_ends_the_cluster_by_name(nodes: Maker) -> None:
    cluster = nodes(2)
    cluster.start_one(0)
    cluster.start_one(1, f"--artifact={Artifact('index', 'echo the disk has 3 GB free, 80 GB are needed; exit 2')}")
    assert cluster.failed() == "rank 1, artifact: artifact index: the disk has 3 GB free, 80 GB are needed"
    assert cluster[1].failure().permanent


test_scenario = scenario.test()
