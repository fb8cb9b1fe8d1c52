"""Ray's command line, exactly; and what the agent asks of it."""

import contextlib
import dataclasses
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_server import serving

from cloudrl.node.agent import Agent
from cloudrl.node.identity import Identity
from cloudrl.node.ray import Dashboard, probe, ray_command, start_command, taken_ports
from cloudrl.protocol.options import AgentOptions

DSTACK_PORTS = (22, 8265, 8266, 6379, 10001, 10022, 10998, 10999)


def _identity(rank: int) -> Identity:
    return Identity("dstack", "ray-cluster", "run", rank, 2, "10.0.0.1", f"10.0.0.{rank + 1}", 8)


def _command(rank: int, *words: str, gpus: int = 8) -> list[str]:
    program, *command = start_command(AgentOptions.from_argv(words), _identity(rank), gpus=gpus, cpus=64)
    assert program == ray_command()
    return command


PORTS = (
    "--node-manager-port=20000 --object-manager-port=20001 --dashboard-agent-listen-port=52365"
    " --min-worker-port=20002 --max-worker-port=29999 --num-gpus=8 --num-cpus=64 --disable-usage-stats --block"
)


def test_head() -> None:
    head = "start --node-ip-address=10.0.0.1 --head --port=6379 --dashboard-host=127.0.0.1 --dashboard-port=8265"
    assert _command(0) == f"{head} --ray-client-server-port=10001 {PORTS}".split()


def test_worker() -> None:
    assert _command(1) == f"start --node-ip-address=10.0.0.2 --address=10.0.0.1:6379 {PORTS}".split()


def test_everything_else_that_can_be_asked_for() -> None:
    words = (
        "--object-store-bytes=1000 --ray-temp-dir=/tmp/x --gcs-port=1 --worker-ports=0-0"
        " --dashboard-port=2 --client-port=3 --node-manager-port=0"
    )
    command = _command(0, *words.split(), gpus=0)
    wanted = {
        "--num-cpus=64", "--object-store-memory=1000", "--temp-dir=/tmp/x", "--port=1", "--dashboard-port=2",
        "--ray-client-server-port=3", "--node-manager-port=0", "--min-worker-port=0", "--max-worker-port=0",
        "--num-gpus=0",
    }  # fmt: skip
    assert wanted - set(command) == set()
    assert command[-1] == "--block"


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("words", [[], ["--dashboard-port=1"], ["--ray-temp-dir=/t", "--cpus-per-node=1"]])
def test_the_dashboard_is_on_loopback_whatever_is_asked_for(rank: int, words: list[str]) -> None:
    hosts = [word for word in _command(rank, *words) if word.startswith("--dashboard-host")]
    assert hosts == (["--dashboard-host=127.0.0.1"] if rank == 0 else [])


def test_no_default_port_is_one_of_dstack_or_another_of_ours() -> None:
    ports = AgentOptions.from_argv([]).ports
    first, last = ports.worker
    single = [value for value in dataclasses.asdict(ports).values() if isinstance(value, int)]
    single.remove(ports.head_agent)  # the same as this agent's, on another machine
    assert len(set(single)) == len(single)
    assert not [port for port in (*DSTACK_PORTS, *single) if first <= port <= last]
    assert not {22, 10022, 10998, 10999} & set(single)


def test_probe() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert probe("127.0.0.1", port) == "open"
    assert probe("127.0.0.1", port) == "refused"
    with socket.socket() as full:  # a listener whose queue is full answers nothing, like a firewall
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        assert probe("127.0.0.1", full.getsockname()[1], 0.1) == "silent"
        for each in waiting:
            each.close()


def test_ports_that_ray_could_not_have() -> None:
    identity = Identity("local", "one", "run", 0, 2, "127.0.0.1", "127.0.0.1", None)
    uses = {
        "gcs": "control store", "dashboard": "dashboard", "client": "client server", "node-manager": "node manager",
        "object-manager": "object manager", "dashboard-agent": "dashboard agent",
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(socket.create_server(("127.0.0.1", 0))) for name in uses}
        ports = {name: server.getsockname()[1] for name, server in servers.items()}
        options = AgentOptions.from_argv([f"--{name}-port={port}" for name, port in ports.items()])
        wanted = {f"{ports[name]} (Ray's {use})" for name, use in uses.items()}
        assert set(taken_ports(options, identity)) == wanted
        worker = dataclasses.replace(identity, rank=1)
        assert len(taken_ports(options, worker)) == 3
    assert taken_ports(options, identity) == []
    assert taken_ports(AgentOptions.from_argv([f"--{name}-port=0" for name in uses]), identity) == []


def test_a_dashboard_that_is_not_there_yet() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    refused = Dashboard(port, "token")
    assert (refused.session_name(), refused.alive_nodes(), refused.takes_jobs()) == (None, 0, False)
    assert refused.rows("tasks", None) is None, "which is not to have none"


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[Dashboard]:
    """A dashboard that says just that to every question."""

    def say(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(answer)

    with serving(say) as port:
        yield Dashboard(port, "token")


def _ok(body: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


@pytest.mark.io
@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[1", b"no HTTP\r\n\r\n", b"HTTP/1.1 500 No\r\n\r\n"]
)
def test_a_dashboard_that_breaks_off_is_silent(answer: bytes) -> None:
    with answering(answer) as dashboard:
        assert dashboard.jobs() is None
        assert dashboard.alive_actors() is None
        assert dashboard.session_name() is None


@pytest.mark.io
def test_no_proxy_is_asked_and_none_gets_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(0.0)
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}/")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        with answering(_ok('{"session_name": "session_1"}')) as dashboard:
            assert dashboard.session_name() == "session_1"
        with pytest.raises(BlockingIOError):
            proxy.accept()


@pytest.mark.io
@pytest.mark.parametrize(
    ("body", "actors"),
    [
        ('{"data": {"result": {"total": 1, "result": [{"state": "ALIVE"}]}}}', [{"state": "ALIVE"}]),
        ('{"result": false, "msg": "GCS is away", "data": {"result": null}}', None),
        ("[]", None),
        ("3", None),
    ],
)
def test_actors_that_live(body: str, actors: list[dict[str, str]] | None) -> None:
    with answering(_ok(body)) as dashboard:
        assert dashboard.alive_actors() == actors


@pytest.mark.io
@pytest.mark.parametrize(
    ("body", "ends"),
    [
        ('{"data": {"actors": {"a": {"endTime": 1500}, "b": {"endTime": 0}}}}', {"a": 1.5}),
        ('{"data": {"actors": {"a": {"endTime": null}}}}', {}),
        ("3", {}),
    ],
)
def test_when_actors_have_ended(body: str, ends: dict[str, float]) -> None:
    with answering(_ok(body)) as dashboard:
        assert dashboard.actor_ends(["a", "b"]) == ends


def test_the_ray_beside_this_python_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("beside", "path"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "ray").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "beside" / "python3"))
    assert ray_command() == str(tmp_path / "beside" / "ray")
    (tmp_path / "beside" / "ray").unlink()
    assert ray_command() == str(tmp_path / "path" / "ray")
    (tmp_path / "path" / "ray").unlink()
    assert ray_command() == "ray"


def test_a_worker_has_all_of_its_time_once_the_head_answers() -> None:
    """However long it has waited for the control store, which has a deadline of its own."""
    left: list[float] = []
    node: Any = SimpleNamespace(
        options=SimpleNamespace(ray_timeout_s=60.0),
        state=SimpleNamespace(update=lambda **_: None),
        before_ray=lambda: time.sleep(0.2),
        is_head_up=lambda: True,
        _await_free_ports=lambda: None,
    )

    def started(deadline: float) -> Any:
        left.append(deadline - time.monotonic())
        return SimpleNamespace(poll=lambda: None)

    node._start_ray_once = started
    Agent._start_ray(node)
    assert left[0] > 59.9
