"""Debuggers of jobs on dstack's hosts, reached through the tunnel; from outside nothing of them is to be seen."""

import contextlib
import errno
import json
import select
import shutil
import socket
from pathlib import Path
from typing import Any

import dap_client
import pytest
from dstack_hosts.client import Client
from dstack_hosts.runs import until
from dstack_hosts.user import MODEL, User
from verl_with_stops import REWARD, copy_verl

pytestmark = [pytest.mark.dstack, pytest.mark.ray]

LOOK = """
import json, sys, time
import cloudrl
from dap_client import DapClient

agent = cloudrl.attach("first").connection.agent()

def waiting(count):
    while True:
        found = [stop for rank in (0, 1) for stop in agent.stops(rank) if not stop.attached]
        if len(found) >= count:
            return found
        time.sleep(0.3)

for count in map(int, sys.argv[1:]):
    for stop in waiting(count):
        client = DapClient(agent.relay(stop.node, stop.port))
        client.attach()
        thread, stack = client.stopped()
        top = stack[0]
        seen = {"stop": vars(stop), "stack": top["name"], "line": top["line"], "locals": client.locals(top)}
        print(json.dumps(seen), flush=True)
        client.go_on(thread)
        client.close()
"""
RANKS = """
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

@ray.remote(num_cpus=0)
class Rank:
    def update_actor(self, number):
        loss = number * 2
        breakpoint()
        return loss

ray.init()
places = [On(each["NodeID"], soft=False) for each in ray.nodes()]
ranks = [Rank.options(scheduling_strategy=place).remote() for place in places]
print("sum", sum(ray.get([rank.update_actor.remote(number) for number, rank in enumerate(ranks, 1)])))
"""
PDB = """
import json, sys, time
import cloudrl
from pathlib import Path

agent = cloudrl.attach("first").connection.agent()
while len(found := [stop for rank in (0, 1) for stop in agent.stops(rank)]) < 2:
    time.sleep(0.3)
print(json.dumps([vars(stop) for stop in found]), flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.2)
for stop in found:
    with agent.relay(stop.node, stop.port) as connection:
        said = b""
        while b"(Pdb) " not in said:
            said += connection.recv(4096)
        connection.sendall(b"p loss\\nc\\n")
        while piece := connection.recv(4096):
            said += piece
        print(json.dumps(said.decode()), flush=True)
"""


@pytest.fixture(scope="module")
def home(user: User) -> Path:
    """The folder in which the user works: a copy of verl with breakpoints, a reward function, and a client."""
    folder = user.lab.home / "debugging"
    fork = folder / "fork" / "verl"
    copy_verl(fork)
    (folder / "reward.py").write_text(REWARD)
    shutil.copy(dap_client.__file__, folder)
    for name, code in (("look.py", LOOK), ("pdb_client.py", PDB)):
        (folder / name).write_text(code)
    return folder


def test_a_training_and_a_post_mortem(user: User, first: str, home: Path) -> None:
    words = ("--cluster", first, "--no-wait", "--working-dir", "fork", "--reward", "./reward.py", "--post-mortem")
    own = ("--submission-id", "debugged", "--steps", "1", "trainer.test_freq=1")
    user.types("cloudrl", "submit", "grpo-tiny", *MODEL, *words, *own, cwd=home)
    client = user.lab.popen("python", "look.py", "1", "2", "1", cwd=home)
    try:
        client.finish(240)
    finally:  # its paused tasks are not those of the next test
        user.types("cloudrl", "jobs", "stop", "debugged", "--cluster", first, "-y")
    assert client.returncode == 0, client.output[-3000:]
    loop, *ranks, failed = map(json.loads, filter(lambda line: line.startswith("{"), client.output.splitlines()))
    assert (loop["stack"], loop["stop"]["actor"]) == ("run", "AgentLoopWorkerTQ")
    assert "cloudrl/addition" in loop["locals"]["kwargs"]
    assert [each["stack"] for each in ranks] == ["update_actor"] * 2
    assert sorted(each["stop"]["rank"] for each in ranks) == [0, 1]
    assert {each["stop"]["node"] for each in ranks} == {0, 1}
    assert all("TensorDict" in each["locals"]["data"] for each in ranks)
    assert failed["stop"]["reason"].startswith("ValueError: no reward for ")
    assert (failed["stack"], failed["line"]) == ("compute_score", failed["stop"]["line"])


def test_the_legacy_debugger_and_a_port_scan_meanwhile(user: User, first: str, home: Path) -> None:
    addresses = [host.address for host in user.hosts_of(first)]
    with user.lab.network():
        before = [open_ports(address) for address in addresses]
    recipe = user.recipe("ranks", f"exec({RANKS!r})")
    words = ("--cluster", first, "--submission-id", "ranks", "--no-wait", "--legacy-debugger")
    user.types("cloudrl", "submit", str(recipe), *words)
    client = user.lab.popen("python", "pdb_client.py", str(home / "go"), cwd=home)
    stops = said(client, 1)[0]
    assert sorted((stop["node"], stop["actor"], stop["method"], stop["debugger"]) for stop in stops) == [
        (0, "Rank", "update_actor", "pdb"), (1, "Rank", "update_actor", "pdb")
    ]  # fmt: skip
    with user.lab.network():
        meanwhile = [open_ports(address) for address in addresses]
    new = [port for node, ports in enumerate(meanwhile) for port in ports - before[node]]
    assert all(20_000 <= port < 30_000 for port in new), new  # Ray's own workers, which want its token
    assert not {stop["port"] for stop in stops} & set(new)
    (home / "go").touch()
    assert sorted("2\r\n" in each or "4\r\n" in each for each in said(client, 3)[1:]) == [True, True]
    client.finish(60)
    assert client.returncode == 0, client.output[-3000:]
    assert "sum 6" in user.types("cloudrl", "jobs", "logs", "ranks", "--cluster", first).stdout


def test_sessions_of_the_command(user: User, first: str) -> None:
    folder = user.lab.home / "ranks"
    folder.mkdir()
    (folder / "ranks.py").write_text(RANKS)
    recipe = user.recipe("typed", "__import__('runpy').run_path('ranks.py', run_name='__main__')")
    words = ("--cluster", first, "--submission-id", "typed", "--no-wait", "--working-dir", "ranks", "--debug")
    user.types("cloudrl", "submit", str(recipe), *words, cwd=user.lab.home)

    def waiting() -> list[Any]:
        return json.loads(user.types("cloudrl", "debug", "--json", "--cluster", first).stdout)

    until(lambda: len(waiting()) == 2, 120, lambda: str(waiting()))
    stops = waiting()
    assert {stop["node"] for stop in stops} == {0, 1}
    assert not [host for host in user.hosts_of(first) for stop in stops if is_open(user, host.address, stop["port"])]
    listed = user.types("cloudrl", "debug", "--cluster", first).stdout
    assert listed.count("update_actor") == 2
    session = f"printf 'w\\np loss\\nloss = 50\\nq\\n' | cloudrl debug 1 --cluster {first}"
    said = [user.types("bash", "-c", session).stdout]
    until(lambda: len(waiting()) == 1, 60, lambda: said[0])  # the one that went on may be listed a moment longer
    said.append(user.types("bash", "-c", session).stdout)
    assert sorted(line for text in said for line in text.splitlines() if line in ("2", "4")) == ["2", "4"], said
    assert all("update_actor" in text for text in said)
    logs = ("cloudrl", "jobs", "logs", "typed", "--cluster", first)
    until(lambda: "sum 100" in user.types(*logs).stdout, 60, lambda: user.types(*logs).stdout)


def said(client: Client, count: int) -> list[Any]:
    """What it has printed as JSON, once it is so much."""

    def lines() -> list[Any]:
        return [json.loads(line) for line in client.output.splitlines() if line.startswith(("[", '"', "{"))]

    until(lambda: len(lines()) >= count or client.returncode, 120, lambda: client.output[-2000:])
    return lines()


def is_open(user: User, address: str, port: int) -> bool:
    """Whether a port of a host can be reached from the user's machine."""
    with user.lab.network(), contextlib.suppress(OSError), socket.create_connection((address, port), 5):
        return True
    return False


def open_ports(address: str) -> set[int]:
    """Those of all TCP ports of a host to which a connection can be made from here."""
    found = set()
    for start in range(1, 1 << 16, 400):
        poll, tried = select.poll(), {}
        for port in range(start, min(start + 400, 1 << 16)):
            probe = socket.socket()
            probe.setblocking(False)
            if probe.connect_ex((address, port)) in (0, errno.EINPROGRESS):
                tried[probe.fileno()] = (port, probe)
                poll.register(probe, select.POLLOUT)
            else:
                probe.close()
        while tried:
            ready = poll.poll(2000)
            for descriptor, _ in ready:
                port, probe = tried.pop(descriptor)
                poll.unregister(descriptor)
                if not probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    found.add(port)
                probe.close()
            if not ready:  # dropped on the way
                for _, probe in tried.values():
                    probe.close()
                break
    return found
