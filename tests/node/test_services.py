"""Supervising services: real processes that answer as they are told; whole nodes are in `test_cluster_services.py`."""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from child_processes import until
from patience import SLOWER
from quiet_ports import free_ports

from cloudrl.child_process import Child
from cloudrl.node.failure import NodeFailed
from cloudrl.node.node_state import NodeState
from cloudrl.node.services import Services, service_variables
from cloudrl.node.timeouts import PhaseTimeouts
from cloudrl.protocol.options import AgentOptions
from cloudrl.protocol.report import NodeReport
from cloudrl.protocol.services import Service

pytestmark = pytest.mark.io

SERVER = """
import http.server, os, pathlib, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(pathlib.Path("status").read_text()) if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_):
        pass

print("loaded", flush=True)
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""


class Bench:
    """The services of a node, its agent's main thread, and a clock that runs on by hand."""

    def __init__(self, folder: Path, services: list[Service], silent_s: float = 120.0, well_s: float = 600.0) -> None:
        self.port = services[0].port
        self.folder, self.ahead_s, self.said = folder, 0.0, list[str]()
        self.children: list[Child] = []
        self.state = NodeState(NodeReport(rank=0, ip="127.0.0.1"))
        self.services = Services(
            services, self.state, self._wait_for, self.said.append,
            clock=lambda: time.monotonic() + self.ahead_s, silent_s=silent_s, well_s=well_s,
        )  # fmt: skip

    def _wait_for(self, condition: Callable[[], bool], timeout_s: float, pause_s: float = 0.05) -> bool:
        ends_at = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > ends_at:
                return False
            time.sleep(0.02)
            self.services.check()
        return True

    def child(self, command: list[str], log: str) -> Child:
        self.children.append(Child(command, log=self.folder / log, env=os.environ, cwd=self.folder))
        return self.children[-1]

    def answer(self, status: int) -> None:
        (self.folder / "status.part").write_text(str(status))
        (self.folder / "status.part").replace(self.folder / "status")

    def is_(self, words: str | dict[str, str]) -> bool:
        self.services.check()
        return self.state.own.services == ({"search": words} if isinstance(words, str) else words)

    def kill(self) -> None:
        os.kill(self.children[-1].pid, signal.SIGKILL)

    def failure(self) -> NodeFailed:
        """What it fails with in the next moments."""
        with pytest.raises(NodeFailed) as failed:
            until(lambda: self.is_("never"), "it fails")
        return failed.value


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def new(
        command: str = "",
        *,
        also: Service | None = None,
        silent_s: float = 120.0,
        well_s: float = 600.0,
        **fields: object,
    ) -> Bench:
        (tmp_path / "server.py").write_text(SERVER)
        [port] = free_ports(1)
        fields = {"name": "search", "health": "/health", "restart": 2, **fields}
        service = Service(port, command or f"exec {sys.executable} server.py", **fields)  # type: ignore[arg-type]
        benches.append(Bench(tmp_path, [service] if also is None else [service, also], silent_s, well_s))
        benches[-1].answer(200)
        return benches[-1]

    yield new
    for bench in benches:
        for child in bench.children:
            child.end()


def test_it_is_ready_when_its_health_path_says_so(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.answer(503)
    bench.services.start(bench.child)
    until(lambda: "loaded" in bench.children[0].tail(), "its port is open")
    time.sleep(0.6)
    assert bench.is_("starting")
    bench.answer(200)
    bench.services.wait(20 * SLOWER)
    assert bench.is_("ready")
    assert (bench.state.own.detail, bench.said) == ("", [])


def test_one_that_is_never_ready_is_named_with_what_it_said(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.answer(503)
    bench.services.start(bench.child)
    until(lambda: "loaded" in bench.children[0].tail(), "its port is open")
    with pytest.raises(
        NodeFailed, match=r"does not answer on port \d+ to GET /health with status 200 after 1 s \(status 503\)"
    ) as failed:
        bench.services.wait(1)
    assert (failed.value.failure.code, failed.value.failure.tail) == ("timeout", "loaded")


def test_one_that_is_killed_is_started_again_until_it_was_too_often(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.services.start(bench.child)
    bench.services.wait(20 * SLOWER)
    for number, pause_s in ((1, 5), (2, 10)):
        bench.kill()
        word = f"started again, {number} of 2"
        until(lambda word=word: bench.is_(word), "it has ended")
        assert len(bench.children) == number
        assert f"ended with status -9; started again in {pause_s} s ({number} of 2); it said:\nloaded" in bench.said[-1]
        bench.ahead_s += pause_s
        until(lambda: bench.is_("ready"), "it is ready again")
    bench.kill()
    failure = bench.failure().failure
    assert failure.reason.endswith("ended with status -9; it was started again 2 times")
    assert (failure.kind, failure.code, failure.tail) == ("service", "exit", "loaded")


def test_one_that_was_well_for_long_has_all_its_restarts_again(make: Callable[..., Bench]) -> None:
    bench = make(restart=1, well_s=60.0)
    bench.services.start(bench.child)
    bench.services.wait(20 * SLOWER)
    for _ in range(2):
        bench.kill()
        until(lambda: bench.is_("started again, 1 of 1"), "it has ended")
        bench.ahead_s += 5
        until(lambda: bench.is_("ready"), "it is ready again")
        bench.ahead_s += 61
        assert bench.is_("ready")
    assert len(bench.said) == 2


def test_one_that_hangs_is_ended_and_started_again(make: Callable[..., Bench]) -> None:
    """It takes connections, and answers none of them: a deadlock, a lost GPU."""
    bench = make(silent_s=2.4)
    bench.services.start(bench.child)
    bench.services.wait(20 * SLOWER)
    os.kill(bench.children[0].pid, signal.SIGSTOP)
    until(lambda: bench.is_("started again, 1 of 2"), "it counts as ended")
    assert "has not answered on port" in bench.said[0]
    assert bench.children[0].poll() == -signal.SIGKILL
    bench.ahead_s += 5
    until(lambda: bench.is_("ready"), "it is ready again")


def test_one_that_says_for_long_that_it_is_not_ready_counts_as_ended(make: Callable[..., Bench]) -> None:
    bench = make(silent_s=2.4, restart=0)
    bench.services.start(bench.child)
    bench.services.wait(20 * SLOWER)
    bench.answer(503)
    failure = bench.failure().failure
    assert failure.reason.endswith("s (status 503)")
    assert failure.code == "timeout"


def test_one_that_was_never_ready_is_not_started_again(make: Callable[..., Bench]) -> None:
    bench = make("echo no index; exit 3")
    bench.services.start(bench.child)
    assert bench.failure().failure.reason.endswith("ended with status 3; it said last: no index")
    assert len(bench.children) == 1


def test_without_a_health_path_an_open_port_is_enough_and_is_looked_at_once(make: Callable[..., Bench]) -> None:
    bench = make(health="", silent_s=1.0)
    bench.services.start(bench.child)
    bench.services.wait(20 * SLOWER)
    os.kill(bench.children[0].pid, signal.SIGSTOP)
    bench.ahead_s += 1000
    assert bench.is_("ready")


def test_it_is_started_when_what_it_needs_is_there(make: Callable[..., Bench]) -> None:
    bench = make(needs=("index", "Qwen/Q"))
    bench.services.start(bench.child)
    bench.state.add("artifacts", "index", "/data/artifacts/index")
    bench.services.check()
    assert (bench.children, bench.state.own.services) == ([], {})
    bench.state.add("models", "Qwen/Q", "/models/q")
    bench.services.wait(20 * SLOWER)
    assert bench.is_("ready")


def test_another_server_at_the_port_is_not_taken_for_it(make: Callable[..., Bench]) -> None:
    """Its port was free when the node began, hours before what it needs was there; or before it ended."""
    bench = make(needs=("index",))
    bench.services.start(bench.child)
    with socket.create_server(("127.0.0.1", bench.port)):
        bench.state.add("artifacts", "index", "/data/artifacts/index")
        failure = bench.failure().failure
    taken = f"ports of services are in use on this node: {bench.port}"
    assert failure.reason == f"{taken} -> another `port`, where jobs share a node"
    assert (failure.code, bench.children) == ("taken", [])


def test_it_is_started_again_when_another_server_has_left_its_port(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.services.start(bench.child)
    bench.services.wait(20 * SLOWER)
    bench.kill()
    until(lambda: bench.is_("started again, 1 of 2"), "it has ended")
    with socket.create_server(("127.0.0.1", bench.port)):
        bench.ahead_s += 5
        assert bench.is_("started again, 2 of 2")
    assert bench.said[-1].endswith("another process answers there; started again in 10 s (2 of 2)")
    assert len(bench.children) == 1
    bench.ahead_s += 10
    until(lambda: bench.is_("ready"), "it is ready again")


def test_one_that_ends_while_another_loads_is_waited_for(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudrl.node.services._FIRST_PAUSE_S", 0.5)
    serve = f"exec {sys.executable} server.py"
    slow = f"until [ -e go ]; do sleep 0.05; done; kill -9 $(cat pid); {serve}"
    bench = make(f"echo $$ >pid; {serve}", also=Service(*free_ports(1), slow, name="slow"))
    bench.services.start(bench.child)
    until(lambda: bench.is_({"search": "ready", "slow": "starting"}), "one of them is ready")
    (bench.folder / "go").touch()
    bench.services.wait(20 * SLOWER)
    assert bench.is_({"search": "ready", "slow": "ready"})
    assert len(bench.children) == 3


def test_one_with_an_index_has_time_to_load_it_again(make: Callable[..., Bench]) -> None:
    bench = make(needs=("index",), silent_s=2.4)
    bench.state.add("artifacts", "index", "/data/artifacts/index")
    bench.services.start(bench.child)
    bench.services.wait(20 * SLOWER)
    bench.answer(503)
    bench.kill()
    until(lambda: bench.is_("started again, 1 of 2"), "it has ended")
    bench.ahead_s += 5
    assert bench.is_("starting")
    bench.ahead_s += 890
    assert bench.is_("starting")
    bench.ahead_s += 11
    assert bench.is_("started again, 2 of 2")


def test_one_that_asks_its_like_has_time_while_another_node_loads(make: Callable[..., Bench]) -> None:
    bench = make(peer_port=free_ports(1)[0], silent_s=1.0)
    bench.state.publish(peers={"search": ("10.0.0.1:8100", "10.0.0.2:8100")})
    bench.services.start(bench.child)
    bench.services.wait(20 * SLOWER)
    until(lambda: bench.is_("ready"), "it is noticed")
    bench.answer(503)
    bench.ahead_s += 100
    assert bench.is_("ready")
    bench.ahead_s += 900
    until(lambda: bench.is_("started again, 1 of 2"), "nobody waits for ever")


def test_services_have_time_to_load() -> None:
    options = AgentOptions.from_argv(["--service=8001:b", "--service=8000:a", "--fetch-timeout-s=7"])
    assert options.services == (Service(8001, "b"), Service(8000, "a"))
    without = AgentOptions.from_argv(["--fetch-timeout-s=7"])
    assert PhaseTimeouts(options).phases["fetch"] == PhaseTimeouts(without).phases["fetch"] + 7


def test_processes_of_the_node_know_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/cloudrl/cloudrl-node.pyz", "run"])
    services = (Service(20123, "a", name="my-search"), Service(8000, "b"))
    assert service_variables(AgentOptions(services=services, data_dir=Path("/data"), run_dir=Path("/run"))) == {
        "CLOUDRL_SERVICE_MY_SEARCH": "127.0.0.1:20123",
        "CLOUDRL_SERVICE_8000": "127.0.0.1:8000",
        "CLOUDRL_ARTIFACTS": "/data/artifacts",
        "CLOUDRL_FILES": "/opt/cloudrl",
        "CLOUDRL_PEER_TOKEN_FILE": "/run/peer-token",
    }
