"""Breakpoints, post-mortems and Ray's legacy debugger in real trainings of two nodes, reached through the agents."""

import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from dap_client import DapClient
from patience import SLOWER
from pdb_client import until_prompt
from verl_with_stops import REWARD, copy_verl

from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.stops import Stop
from cloudrl.sdk.running import attach

pytestmark = [pytest.mark.e2e, pytest.mark.slow]  # as in tests/providers/test_dstack_debug.py, without a tunnel

NAME = "debug"


@pytest.fixture(scope="module")
def agent(shell) -> AgentClient:
    """A cluster, and beside it a copy of verl in which both places say `breakpoint()`."""
    fork, mine = shell.home / "fork" / "verl", shell.home / "mine"
    copy_verl(fork)
    mine.mkdir()
    (mine / "reward.py").write_text(REWARD)
    shell.run("up", NAME, "--on", "local", "--nodes", "2", "--data", "addition", "--model", "tiny-adder")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLOUDRL_HOME", str(shell.home / "home"))
        connected = attach(NAME).connection.agent()
    assert connected is not None
    return connected


def stops(agent: AgentClient, are_there: Callable[[list[Stop]], bool]) -> list[Stop]:
    """Those of both nodes, once they are there."""
    deadline = time.monotonic() + 200 * SLOWER
    while True:
        found = [stop for rank in (0, 1) for stop in agent.stops(rank) if not stop.attached]
        if are_there(found):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.3)


def submit(shell, agent: AgentClient, job: str, *words: str) -> None:
    own = ("--submission-id", job, "--no-wait", "--steps", "1")
    shell.run("submit", "grpo-tiny", "--cluster", NAME, *own, *words)


def listens_on(port: int) -> set[str]:
    """Addresses as the kernel writes them."""
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {words[1].split(":")[0] for words in lines if words[3] == "0A" and int(words[1].split(":")[1], 16) == port}


def test_breakpoints_in_a_training_that_goes_on(shell, agent: AgentClient):
    submit(shell, agent, "one", "--debug", "--working-dir", "fork")
    [loop] = stops(agent, bool)
    assert (loop.actor, loop.rank, loop.method, loop.job) == ("AgentLoopWorkerTQ", None, "run", "one")
    assert loop.file.endswith("verl/experimental/agent_loop/single_turn_agent_loop.py")
    assert loop.file.startswith(loop.cwd)
    assert listens_on(loop.port) == {"0100007F"}
    client = DapClient(agent.relay(loop.node, loop.port))
    client.attach()
    thread, stack = client.stopped()
    assert (stack[0]["name"], stack[0]["source"]["path"]) == ("run", loop.file)
    assert "cloudrl/addition" in client.locals(stack[0])["kwargs"]
    client.go_on(thread)
    client.close()

    ranks = stops(agent, lambda found: len(found) == 2)
    assert {(stop.actor, stop.method) for stop in ranks} == {("WorkerDict", "update_actor")}
    assert sorted(str(stop.rank) for stop in ranks) == ["0", "1"]
    assert {stop.node for stop in ranks} == {0, 1}
    for stop in ranks:
        assert listens_on(stop.port) == {"0100007F"}
        client = DapClient(agent.relay(stop.node, stop.port))
        client.attach()
        thread, stack = client.stopped()
        assert stack[0]["name"] == "update_actor"
        assert "TensorDict" in client.locals(stack[0])["data"]
        assert client.evaluate("self.rank", stack[0]) == str(stop.rank)
        client.go_on(thread)
        client.close()
    assert attached_job(shell, "one") == "SUCCEEDED"
    assert any("step:1 " in line for line in shell.driver_log(NAME))


def attached_job(shell, job: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLOUDRL_HOME", str(shell.home / "home"))
        return str(attach(NAME).job(job).wait(timeout_s=200))


def test_the_legacy_debugger_and_its_post_mortem(shell, agent: AgentClient):
    submit(shell, agent, "two", "--legacy-debugger", "--post-mortem", "--working-dir", "fork",
           "--reward", "./mine/reward.py", "trainer.test_freq=1")  # fmt: skip
    seen = []
    for _ in range(4):
        stop = stops(agent, bool)[0]
        seen.append((stop.actor, stop.method, stop.rank))
        assert stop.debugger == "pdb"
        assert listens_on(stop.port) == {"0100007F"}
        with agent.relay(stop.node, stop.port) as connection:
            connection.settimeout(60)
            until_prompt(connection)
            assert f"{stop.method}(" in say(connection, "w")
            assert say(connection, "p 40 + 2").splitlines()[0] == "42"
            if stop.method == "compute_score":
                assert re.fullmatch(r"ValueError: no reward for \d+", stop.reason)
                assert say(connection, "p ground_truth").splitlines()[0].strip("'") == stop.reason.split()[-1]
            connection.sendall(b"c\n")
            while connection.recv(4096):
                pass
    assert seen[0] == ("AgentLoopWorkerTQ", "run", None)
    assert sorted(map(str, seen[1:3])) == [f"('WorkerDict', 'update_actor', {rank})" for rank in (0, 1)]
    assert seen[3] == ("RewardLoopWorker", "compute_score", None)
    shell.run("jobs", "stop", "two", "--cluster", NAME, "-y")


def say(connection: socket.socket, command: str) -> str:
    connection.sendall(command.encode() + b"\n")
    return until_prompt(connection)
