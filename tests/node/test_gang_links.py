"""All nodes compute together, over real links: gloo between network namespaces. Links are cut, slow or filtered."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from patience import SLOWER

from cloudrl.node.compute_watch import ComputeWatch
from cloudrl.node.failure import NodeFailed
from cloudrl.node.gang import ANSWERS_WITHIN_S, Gang
from cloudrl.node.identity import Identity
from cloudrl.node.node_state import NodeState
from cloudrl.protocol.compute import ComputeStep
from cloudrl.protocol.options import AgentOptions
from cloudrl.protocol.report import NodeReport, NodeWarning, WarningKind

_MISSING = [name for name in ("ip", "tc", "iptables", "unshare", "nsenter") if shutil.which(name) is None]
pytestmark = [
    pytest.mark.root,
    pytest.mark.agents,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
    pytest.mark.skipif(bool(_MISSING), reason=f"not on this machine: {', '.join(_MISSING)}"),
]


@pytest.fixture(scope="module")
def forks() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported torch."""
    pytest.importorskip("torch")
    script = Path(__file__).with_name("torch_forks.py")
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "eth0",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


class Namespaces:
    """Networks of nodes: 10.77.0.1, .2 ... on one bridge. They end with the processes that hold them."""

    def __init__(self, count: int) -> None:
        hold = ["unshare", "--net", "--", "sh", "-c", "echo; exec sleep 600"]
        self.holders = [subprocess.Popen(hold, stdout=subprocess.PIPE) for _ in range(count + 1)]
        for holder in self.holders:
            assert holder.stdout is not None
            holder.stdout.readline()  # it is in its namespace
        self.switch, *self.nodes = [holder.pid for holder in self.holders]
        self._run(self.switch, "ip link add bridge type bridge && ip link set bridge up")
        for rank, pid in enumerate(self.nodes):
            self._run(
                self.switch,
                f"ip link add port{rank} type veth peer name eth0 netns {pid} && "
                f"ip link set port{rank} master bridge up",
            )
            self._run(pid, f"ip link set lo up && ip link set eth0 up && ip addr add {self.ip(rank)}/24 dev eth0")

    @staticmethod
    def ip(rank: int) -> str:
        return f"10.77.0.{rank + 1}"

    def on(self, rank: int, command: str) -> None:
        """Run a shell command in the network of a node."""
        self._run(self.nodes[rank], command)

    def _run(self, pid: int, command: str) -> None:
        words = ["nsenter", f"--target={pid}", "--net", "--", "sh", "-c", command]
        subprocess.run(words, check=True, timeout=10 * SLOWER, capture_output=True)

    def end(self) -> None:
        for holder in self.holders:
            holder.kill()
        for holder in self.holders:
            holder.communicate()


class Lab:
    """The agents' part of the check for three nodes, in this process; their children are in namespaces."""

    def __init__(self, forks: subprocess.Popen[str], namespaces: Namespaces, folder: Path) -> None:
        self.forks, self.namespaces, self.folder = forks, namespaces, folder
        self.warnings: list[NodeWarning] = []
        self.children: list[int] = []
        self.states = [
            NodeState(NodeReport(rank, namespaces.ip(rank), agent_port=1)) for rank in range(len(namespaces.nodes))
        ]
        self.watches = [self._watch(rank) for rank in range(len(self.states))]
        self.gang = Gang(len(self.states), self.states[0], self.warnings.append, on_gpus=False)

    def _watch(self, rank: int) -> ComputeWatch:
        options = AgentOptions(device="cpu", import_check=("torch",), run_dir=self.folder / str(rank))
        identity = Identity("slurm", "lab", "run", rank, len(self.states), "", self.namespaces.ip(rank), 1)
        watch = ComputeWatch(options, identity, self.states[rank], gpus=1)

        def start_child(words: list[str], _log: str) -> SimpleNamespace:
            to = next(word.removeprefix("--to=") for word in words if word.startswith("--to="))
            (self.folder / str(rank) / "imports.json").write_text("{}")
            assert self.forks.stdin is not None
            assert self.forks.stdout is not None
            self.forks.stdin.write(json.dumps({"pid": self.namespaces.nodes[rank], "folder": to}) + "\n")
            self.forks.stdin.flush()
            self.children.append(int(self.forks.stdout.readline()))
            return SimpleNamespace(poll=lambda: None, tail=lambda: "")

        watch.start(start_child, lambda *words: [*words], {}, print)
        return watch

    def beat(self) -> None:
        """What a heartbeat of each node and its answer bring."""
        for state in self.states[1:]:
            self.states[0].record_heartbeat(state.own)
            state.publish(rendezvous=self.states[0].published.rendezvous)
        for watch in self.watches:
            watch.look()
        self.gang.look(self.states[0].reports())

    def follow(self, until: Callable[[], bool], limit_s: float = ANSWERS_WITHIN_S + 15.0) -> None:
        deadline = time.monotonic() + limit_s
        while not until():
            assert time.monotonic() < deadline, [state.own.check for state in self.states]
            self.beat()
            time.sleep(0.02)

    def are_all_at(self, step: ComputeStep) -> bool:
        checks = [state.own.check for state in self.states]
        return all(check is not None and check.step.number >= step.number for check in checks)

    def failure(self) -> tuple[int, str, float]:
        """Rank, reason and seconds until the start is ended."""
        began = time.monotonic()
        with pytest.raises(NodeFailed) as caught:
            self.follow(lambda: False)
        return caught.value.failure.rank, caught.value.failure.reason, time.monotonic() - began

    def end(self) -> None:
        for pid in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    made = Namespaces(3)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def lab(forks: subprocess.Popen[str], namespaces: Namespaces, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(forks, namespaces, tmp_path)
    try:
        yield made
    finally:
        made.end()


def test_a_good_network(lab: Lab) -> None:
    began = time.monotonic()
    lab.follow(lambda: lab.gang.is_over)
    checks = [state.own.check for state in lab.states]
    print(f"{time.monotonic() - began:.1f} s", checks)
    assert [check.error for check in checks if check] == [""] * 3
    assert all(check.received_gb_per_s > 0.01 and check.tflops[0] > 0 for check in checks if check)
    assert lab.warnings == []


def test_a_slow_link_is_named(lab: Lab, namespaces: Namespaces) -> None:
    namespaces.on(1, "tc qdisc add dev eth0 root tbf rate 3mbit burst 32kb latency 400ms")
    lab.follow(lambda: lab.gang.is_over)
    assert lab.warnings, [state.own.check for state in lab.states]
    [warning] = lab.warnings
    assert warning.kind is WarningKind.SLOW
    assert warning.text.startswith("slow links: from rank ")
    assert "from rank 1 to rank 2 " in warning.text
    assert "B/s; the fastest: " in warning.text


def test_a_cut_link_is_named(lab: Lab, namespaces: Namespaces) -> None:
    """Between two workers: rank 0 reaches both, so that no heartbeat is missed."""
    namespaces.on(1, f"ip route add blackhole {namespaces.ip(2)}")
    lab.follow(lambda: lab.are_all_at(ComputeStep.READY))
    rank, reason, seconds = lab.failure()
    assert "rank 1: cannot reach rank 2; rank 2: cannot reach rank 1" in reason
    assert (rank, seconds < 60) == (1, True)


def test_a_blocked_port_range_is_named(lab: Lab, namespaces: Namespaces) -> None:
    """As a security group that opens the ports of Ray and of the agent alone."""
    namespaces.on(0, "iptables -A INPUT -i eth0 -p tcp --syn --dport 30000:65535 -j DROP")
    rank, reason, seconds = lab.failure()
    assert "ranks 1-2: cannot reach rank 0 -> open all TCP ports between the nodes" in reason
    assert (rank, seconds < 60) == (1, True)


def test_a_stopped_rank_is_named(lab: Lab) -> None:
    lab.follow(lambda: lab.are_all_at(ComputeStep.READY))
    os.killpg(lab.children[2], signal.SIGSTOP)
    rank, reason, seconds = lab.failure()
    assert (rank, seconds < 60) == (2, True)
    assert "rank 2: no sign of life while in step ready" in reason
