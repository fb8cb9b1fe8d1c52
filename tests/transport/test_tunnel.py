"""Forwarded ports, and the process that keeps them open. A script stands in for ssh."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from child_processes import until
from fake_clock import Clock
from patience import SLOWER

from cloudrl.errors import CloudrlError, ClusterFailed, ConnectionFailed, Unauthorized
from cloudrl.transport import ssh, tunnel_daemon
from cloudrl.transport.local_ports import bind, hold_ports, listens
from cloudrl.transport.ssh import Route
from cloudrl.transport.tunnel import Tunnel, pause_s
from cloudrl.transport.tunnel_daemon import TunnelState, acquire_lock

SSH = f"""#!{sys.executable}
import os, re, socket, sys, time
if "-N" not in sys.argv:
    sys.exit(f"no such host: {{sys.argv[3]}}")
ports = [int(re.fullmatch("-L127.0.0.1:([0-9]+):.*", word)[1]) for word in sys.argv if word.startswith("-L127")]
with open(os.path.join(os.path.dirname(sys.argv[2]), sys.argv[-1]), "w") as file:
    file.write(str(os.getpid()))
try:
    held = [socket.create_server(("127.0.0.1", port)) for port in ports]
except OSError:
    sys.exit("bind [127.0.0.1]: Address already in use\\nCould not request local forwarding.")
os.system(next(word for word in sys.argv if word.startswith("LocalCommand=")).partition("=")[2])
time.sleep(120)
"""


class Finder:
    """Leads nowhere in particular, until a file says that it is over."""

    ask_every_s = 0.2

    def __init__(self, over: str, target: str = "run-1") -> None:
        self._over, self.target = over, target

    def find(self) -> Route:
        self.ensure_alive()
        return Route("lab", {"lab": {"HostName": "10.0.0.1", "IdentityFile": "/a b/key"}})

    def ensure_alive(self) -> None:
        if os.path.exists(self._over):
            raise ClusterFailed("run 'lab' is over: done")


@pytest.fixture
def fake_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(SSH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def test_a_route_is_an_ssh_config_for_this_user_alone(tmp_path: Path) -> None:
    words = Finder("").find().command(tmp_path, "lab", "true")
    config = tmp_path / "ssh_config"
    assert words == ["ssh", "-F", str(config), "lab", "true"]
    assert config.stat().st_mode & 0o777 == 0o600
    assert config.read_text().startswith(
        'Host lab\n  HostName 10.0.0.1\n  IdentityFile "/a b/key"\nHost *\n  BatchMode yes\n'
    )


def test_a_host_that_the_route_says_nothing_of_is_learned_and_then_kept() -> None:
    """As dstack's ssh proxy, whose route has no StrictHostKeyChecking; ssh would ask, without an answer."""
    text = Route("lab", {"lab": {"StrictHostKeyChecking": "no"}, "proxy": {}}).config()
    asked = ["ssh", "-G", "-F", "/dev/stdin"]
    found = {
        host: subprocess.run([*asked, host], input=text, capture_output=True, text=True, check=True, timeout=60).stdout
        for host in ("lab", "proxy")
    }
    assert "stricthostkeychecking false" in found["lab"]
    assert "stricthostkeychecking accept-new" in found["proxy"]


@pytest.mark.io
def test_a_command_that_fails_has_sshs_last_words(tmp_path: Path, fake_ssh: None) -> None:
    with pytest.raises(ConnectionFailed, match="ssh to the head of 'lab': no such host: lab"):
        ssh.run(Finder("").find(), tmp_path, ["true"])


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            "root@a: Permission denied (publickey).\r\nkex_exchange_identification: Connection closed\n",
            "root@a: Permission denied (publickey).",
        ),
        ("kex_exchange_identification: read: reset\n\n", "kex_exchange_identification: read: reset"),
        ("\n", ""),
    ],
)
def test_the_reason_of_a_jump_that_failed_stands_before_the_last_words(output: str, reason: str) -> None:
    assert ssh.last_words(output) == reason


def test_ssh_has_to_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CloudrlError, match="there is no ssh on this machine"):
        ssh.run(Finder("").find(), tmp_path, ["true"])


@pytest.mark.io
def test_a_tunnel_without_ssh_says_so(tmp_path: Path) -> None:
    def broken() -> Any:
        raise FileNotFoundError("[Errno 2] No such file or directory: 'ssh'")

    tunnel = Tunnel(broken, (8265,), tmp_path)
    with pytest.raises(ConnectionFailed, match=r"FileNotFoundError: .*'ssh'"):
        tunnel.open(timeout_s=0.5)


@pytest.mark.io
def test_a_refused_key_is_not_tried_again(tmp_path: Path) -> None:
    def refused() -> Route:
        raise Unauthorized("run 'lab' was started with another SSH key", hint="Use the token of the user")

    with pytest.raises(ConnectionFailed, match=r"^no tunnel: run 'lab' was started with another") as caught:
        Tunnel(refused, (8265,), tmp_path).open(timeout_s=10)
    assert caught.value.hint == "Use the token of the user"


@pytest.mark.io
def test_a_tunnel_whose_ssh_ends_goes_on_along_the_present_route(tmp_path: Path, fake_ssh: None) -> None:
    """The head of a run that was submitted again is elsewhere; the local ports stay."""
    routes = iter(["first", "second"])
    tunnel = Tunnel(lambda: Route(next(routes), {}), (8265,), tmp_path)
    tunnel.open(10 * SLOWER)
    os.kill(int((tmp_path / "first").read_text()), signal.SIGKILL)
    until(lambda: (tmp_path / "second").exists() and tunnel.is_open, "it is open again")
    tunnel.close()
    assert not tunnel.is_open


def test_a_host_that_has_been_away_for_long_is_asked_less_often() -> None:
    """A dead login node would be tried every second for days; a break of seconds is mended within one."""
    assert [pause_s(broken_s) for broken_s in (0, 10, 60, 600, 86_400)] == [1, 1, 6, 13, 13]


@pytest.mark.io
def test_nothing_of_ours_takes_the_ports_of_a_tunnel_that_is_broken(tmp_path: Path, fake_ssh: None) -> None:
    """While a head was away, another cluster came up: its tunnel took them, and the first one was never open again."""
    is_away = threading.Event()

    def route() -> Route:
        if is_away.is_set():
            raise ConnectionFailed("rank 0 has no machine yet")
        return Route("lab", {})

    tunnel = Tunnel(route, (8265,), tmp_path / "first")
    tunnel.open(10 * SLOWER)
    is_away.set()
    os.kill(int((tmp_path / "first/lab").read_text()), signal.SIGKILL)
    until(lambda: not tunnel.is_open, "it is broken")
    [port] = tunnel.ports.values()
    assert bind(port) is None, "a cluster on this machine"
    other = Tunnel(lambda: Route("lab", {}), (port,), tmp_path / "second")
    other.open(10 * SLOWER)
    assert port not in other.ports.values()
    is_away.clear()
    until(lambda: tunnel.is_open, "it is open again")
    assert other.is_open
    assert list(tunnel.ports.values()) == [port]
    tunnel.close()
    other.close()
    free = bind(port)
    assert free is not None
    free.close()


@pytest.mark.io
def test_a_tunnel_whose_port_another_program_takes_before_ssh_does_has_another(tmp_path: Path, fake_ssh: None) -> None:
    tunnel = Tunnel(lambda: Route("lab", {}), (8265,), tmp_path)
    [port] = tunnel.ports.values()
    with socket.create_server(("127.0.0.1", port)):
        tunnel.open(10 * SLOWER)
        assert tunnel.is_open
        assert port not in tunnel.ports.values()
        tunnel.close()


@pytest.mark.io
def test_a_daemon_keeps_a_tunnel_open_until_it_is_stopped(
    tmp_path: Path, fake_ssh: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, Path(__file__).parents[:2])))
    place, chosen = tmp_path / "tunnel", hold_ports((8265, 8266))
    wanted = tuple(chosen.numbers.values())  # other numbers where a cluster of this machine has these
    chosen.close()

    started: list[Any] = []
    popen = subprocess.Popen

    def launch(*words: Any, **options: Any) -> Any:
        started.append(popen(*words, **options))
        return started[-1]

    def start(target: str = "run-1") -> TunnelState:
        finder, arguments = "test_tunnel:Finder", [str(tmp_path / "over"), target]
        return tunnel_daemon.start(place, "lab", target, finder, arguments, wanted)

    monkeypatch.setattr(subprocess, "Popen", launch)
    request.addfinalizer(lambda: [each.terminate() for each in started if each.poll() is None])

    state = start()
    assert (state.target, state.ports) == ("run-1", {port: port for port in wanted})
    assert all(listens(port) for port in state.ports.values())
    assert start() == state
    other = start("run-2")  # of the same name, started since
    assert (other.target, other.ports) == ("run-2", state.ports)
    assert tunnel_daemon.stop(place)
    until(lambda: not any(listens(port) for port in state.ports.values()), "its ssh ends with it")
    assert not tunnel_daemon.stop(place)
    os.kill(start().pid, signal.SIGKILL)
    started[-1].wait(10 * SLOWER)
    assert tunnel_daemon.read_state(place) is None
    assert not tunnel_daemon.stop(place)
    assert (place / "tunnel.json").read_text() == "", "nobody takes what it has left for another's"
    start()
    (tmp_path / "over").touch()
    started[-1].wait(5 * SLOWER)  # it asks as often as its target wants
    with pytest.raises(ConnectionFailed, match="did not open: no tunnel: run 'lab' is over: done"):
        start()
    assert [process.wait(10 * SLOWER) for process in started] == [
        0,
        0,
        -signal.SIGKILL,
        ClusterFailed.exit_code,
        ConnectionFailed.exit_code,
    ]


def write(state: TunnelState, folder: Path) -> None:
    (folder / "tunnel.json").write_text(json.dumps(asdict(state)))


def held(port: int) -> int:
    ports = hold_ports((port,))
    ports.close()
    return ports.numbers[port]


class TestLocalPorts:
    def test_one_that_a_tunnel_has_just_left_is_free(self) -> None:
        """The side that hangs up first keeps the connection in TIME_WAIT for a minute."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port)) as client:
                server.accept()[0].close()
                assert client.recv(1) == b""
        assert held(port) == port

    @pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
    def test_one_that_somebody_listens_at_is_not(self, address: str) -> None:
        with socket.create_server((address, 0)) as server:
            port = server.getsockname()[1]
            assert held(port) not in (0, port)


class TestTheSecondDaemon:
    @pytest.fixture
    def first(self, tmp_path: Path) -> Iterator[Any]:
        """The lock of a daemon that is opening its tunnel."""
        held = acquire_lock(tmp_path)
        assert held is not None
        with held:
            yield held

    def test_waits_for_a_lock_that_somebody_looks_through(self, tmp_path: Path, first: Any) -> None:
        threading.Timer(0.3, first.close).start()
        held = acquire_lock(tmp_path, 2.0)
        held.close()

    def test_gives_way(self, tmp_path: Path, first: Any) -> None:
        assert first
        assert acquire_lock(tmp_path, 0.1) is None

    @pytest.fixture
    def start(self, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Callable[[], TunnelState]:
        """Start a daemon that finds another one at work, and ends."""
        gave_way = SimpleNamespace(poll=lambda: 0, terminate=lambda: None)
        monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: gave_way)
        return lambda: tunnel_daemon.start(tmp_path, "lab", "run-1", "a:b", [], [1], clock=clock, sleep=clock.sleep)

    def test_waits_for_the_tunnel_of_the_first(self, tmp_path: Path, first: Any, clock: Clock, start: Any) -> None:
        """The second gives way to the first within 2 s, and the first needs longer for its tunnel."""
        assert first
        (tmp_path / "log").write_text("words of the first\n")
        opened = TunnelState(1, "run-1", {8265: 1, 8266: 2})
        clock.on_sleep = lambda: clock.now > 30 and write(opened, tmp_path)
        assert start() == opened
        assert (tmp_path / "log").read_text() == "words of the first\n"

    def test_does_not_take_a_tunnel_to_another_cluster(
        self, tmp_path: Path, first: Any, clock: Clock, start: Any
    ) -> None:
        assert first
        clock.on_sleep = lambda: write(TunnelState(1, "run-0", {8265: 1, 8266: 2}), tmp_path)
        with pytest.raises(ConnectionFailed, match="leads to an earlier cluster of that name"):
            start()

    def test_fails_with_the_words_of_the_first(self, tmp_path: Path, first: Any, clock: Clock, start: Any) -> None:
        (tmp_path / "log").write_text("words of last week\n")

        def fail() -> None:
            if clock.now > 30 and not first.closed:
                with (tmp_path / "log").open("a") as log:
                    log.write("no tunnel after 60 s\n")
                first.close()

        clock.on_sleep = fail
        for said in ("no tunnel after 60 s", "no reason given"):
            with pytest.raises(ConnectionFailed, match=f"the tunnel to 'lab' did not open: {said}"):
                start()

    def test_does_not_wait_without_end(self, first: Any, clock: Clock, start: Any) -> None:
        assert first
        with pytest.raises(ConnectionFailed, match="did not open"):
            start()
        assert 60 < clock.now < 90

    def test_stop_waits_for_one_that_takes_its_time_to_close(
        self, tmp_path: Path, first: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It forgets its tunnel at once, and its ssh may take a while; the next one would give way to it until then."""
        write(TunnelState(1, "run-1", {}), tmp_path)

        def closing(_pid: int, _number: int) -> None:
            first.truncate(0)
            threading.Timer(0.5, first.close).start()

        monkeypatch.setattr(os, "kill", closing)
        assert tunnel_daemon.stop(tmp_path)
        lock = acquire_lock(tmp_path)
        assert lock is not None
        lock.close()

    def test_stop_of_one_that_has_gone_meanwhile_is_no_error(
        self, tmp_path: Path, first: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(TunnelState(1, "run-1", {}), tmp_path)

        def gone(pid: int, number: int) -> None:
            assert (pid, number) == (1, signal.SIGTERM)
            first.close()
            raise ProcessLookupError

        monkeypatch.setattr(os, "kill", gone)
        assert tunnel_daemon.stop(tmp_path)
