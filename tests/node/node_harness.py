"""Whole agents as real processes, on this machine and without Ray: `Nodes` are those of one cluster.

What they run in is an `Image` (`tests/node_image.py`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from child_processes import until
from compiled_zip import compiled
from node_image import Image, make_image  # noqa: F401 - for who takes the rest from here
from patience import SLOWER
from quiet_ports import free_ports

from cloudrl.errors import ConnectionFailed
from cloudrl.protocol.client import AgentClient
from cloudrl.protocol.failures import Failure
from cloudrl.protocol.interruptions import SWITCH
from cloudrl.protocol.tokens import derive
from cloudrl.protocol.wire import from_json, to_json
from cloudrl.render.agent import AGENT_FILE, build_agent

MARK = "CLOUDRL_TEST_MARK"
"""A variable that every process of a test carries, whatever started it."""
KEY = b"the key of this test"
IP = "127.0.0.1"


def processes_with(name: str, value: str) -> dict[int, str]:
    """Living processes that have `name=value` in their environment: pid -> command line."""
    wanted, found = f"{name}={value}".encode(), {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not folder.name.isdigit() or wanted not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            if (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def kill_all(pids: list[int] | dict[int, str]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@dataclass
class Node:
    """One agent."""

    rank: int
    run_id: str
    process: subprocess.Popen[bytes]
    run_dir: Path
    temp_dir: Path
    output: Path
    port: int
    lease: int | None = None
    key: bytes = KEY

    @property
    def pid(self) -> int:
        return self.process.pid

    def text(self) -> str:
        """All that it printed."""
        return self.output.read_text()

    @property
    def agent(self) -> AgentClient:
        return AgentClient(f"http://{IP}:{self.port}", derive(self.key).agent)

    def status(self) -> dict[str, Any]:
        return dict(to_json(self.agent.status()))

    def phase(self) -> str:
        """As it says itself; "" while it does not listen."""
        try:
            return str(self.status()["phase"])
        except ConnectionFailed:
            return ""

    def await_detail(self, detail: str) -> None:
        """Wait until it says that it does just this."""
        until(lambda: self.phase() and self.status()["detail"] == detail, f"rank {self.rank}: {detail}")

    def exit_code(self, timeout_s: float = 60.0) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"rank {self.rank} has not ended:\n{self.text()}") from None

    def outcome(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.run_dir / "outcome.json").read_text())
        return value

    def failure(self) -> Failure:
        return from_json(Failure, self.outcome()["failure"])

    def reason(self) -> str:
        """Why it has failed, as its log and its outcome say alike; whether that is final or not."""
        marks = ("] failed: ", "CLOUDRL FAILED: ")
        [line] = [line.partition(mark)[2] for line in self.text().splitlines() for mark in marks if mark in line]
        assert self.outcome()["reason"] == line
        return line

    def drop_lease(self, word: bytes = b"") -> None:
        assert self.lease is not None
        os.write(self.lease, word)
        os.close(self.lease)
        self.lease = None

    def end_ray(self) -> None:
        """Kill this node's `ray start`."""
        found = processes_with("CLOUDRL_RUN_ID", self.run_id)
        mine = ("fake_ray.py", f"--temp-dir={self.temp_dir} ")
        [ray] = [pid for pid, line in found.items() if all(word in line for word in mine)]
        os.kill(ray, signal.SIGKILL)


@dataclass
class Nodes:
    """The agents of one cluster on one machine, each with its own folders and port."""

    folder: Path
    image: Image
    count: int
    run_id: str = field(default_factory=lambda: f"run-{uuid.uuid4().hex}")
    started: dict[int, Node] = field(default_factory=dict)
    key: bytes = KEY

    def __post_init__(self) -> None:
        self.gcs_port, self.dashboard_port, self.client_port, *self.agent_ports = free_ports(3 + self.count)
        self.control.mkdir(parents=True, exist_ok=True)
        self.checkpoints.mkdir(exist_ok=True)
        (self.folder / "key").write_bytes(self.key)
        (self.folder / AGENT_FILE).write_bytes(compiled(build_agent(for_cpu=True)))

    @property
    def control(self) -> Path:
        """Where the stand-in for Ray is steered."""
        return self.folder / "ray-control"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def __getitem__(self, rank: int) -> Node:
        return self.started[rank]

    def start(self, *options: str, ranks: range | None = None, **changes: Any) -> Nodes:
        """Start agents, with these options in addition."""
        for rank in ranks if ranks is not None else range(self.count):
            self.start_one(rank, *options, **changes)
        return self

    def start_one(self, rank: int, *options: str, image: Image | None = None, lease: bool = False, **env: str) -> Node:
        folder = self.folder / f"node-{rank}"
        folder.mkdir(exist_ok=True)
        words = [*self._words(rank), *options]
        reading = writing = None
        if lease:
            reading, writing = os.pipe()
            words.append(f"--lease-fd={reading}")
        output = folder / "output"
        with output.open("wb") as out:
            process = subprocess.Popen(
                [str((image or self.image).python), str(self.folder / "cloudrl-node.pyz"), "run", *words],
                env={**self._env(rank), **env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[reading] if reading is not None else [],
            )
        if reading is not None:
            os.close(reading)
        node = Node(rank, self.run_id, process, folder, self._temp(rank), output, self.agent_ports[rank], writing)
        node.key = self.key
        self.started[rank] = node
        return node

    def _temp(self, rank: int) -> Path:
        return self.folder / "temp" / str(rank)

    def _words(self, rank: int) -> list[str]:
        folder = self.folder / f"node-{rank}"
        options = {
            "device": "cpu",
            "gpus-per-node": 1,
            "cpus-per-node": 8,
            "checkpoints": self.checkpoints,
            "data-dir": folder / "data",
            "run-dir": folder,
            "key-file": self.folder / "key",
            "ray-temp-dir": self._temp(rank),
            "agent-port": self.agent_ports[rank],
            "head-agent-port": self.agent_ports[0],
            "gcs-port": self.gcs_port,
            "dashboard-port": self.dashboard_port,
            "client-port": self.client_port,
            "dashboard-agent-port": 0,
            "node-manager-port": 0,
            "object-manager-port": 0,
            "worker-ports": "0-0",
            "join-timeout-s": 20,
            "lost-after-s": 10,
        }
        return [f"--{name}={value}" for name, value in options.items()]

    def _env(self, rank: int) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder / "home"),
            MARK: os.environ[MARK],
            "FAKE_RAY": str(self.control),
            "CLOUDRL_PROVIDER": "local",
            "CLOUDRL_CLUSTER": "test",
            "CLOUDRL_RUN_ID": self.run_id,
            "CLOUDRL_NODE_RANK": str(rank),
            "CLOUDRL_NODES_NUM": str(self.count),
            "CLOUDRL_HEAD_IP": IP,
            "CLOUDRL_NODE_IP": IP,
            SWITCH: "off",
        }

    def renew_key(self) -> None:
        """For the next start of the cluster, which every provider gives a key of its own."""
        self.key += b", once more"
        (self.folder / "key").write_bytes(self.key)

    def ready(self) -> Nodes:
        """Wait until every agent says that the cluster is ready."""
        for node in self.started.values():
            deadline = time.monotonic() + 30 * SLOWER
            while node.process.poll() is None and node.phase() != "ready" and time.monotonic() < deadline:
                time.sleep(0.1)
            assert node.phase() == "ready", self.texts()
        return self

    def texts(self) -> str:
        """What all agents have printed."""
        return "\n".join(f"--- rank {rank}\n{node.text()}" for rank, node in sorted(self.started.items()))

    def exit_codes(self) -> list[int]:
        """Wait until all have ended."""
        return [node.exit_code() for _, node in sorted(self.started.items())]

    def failed(self, code: int = 1) -> str:
        """Wait until all have failed alike, with this exit code; returns why, as all say."""
        assert self.exit_codes() == [code] * len(self.started), self.texts()
        [reason] = {node.reason() for node in self.started.values()}
        assert all(node.failure().final is (code == 0) for node in self.started.values())
        return reason

    def processes(self) -> dict[int, str]:
        """What runs of this cluster."""
        return processes_with("CLOUDRL_RUN_ID", self.run_id)

    def end(self) -> None:
        """End all, as a test does that is over."""
        for node in self.started.values():
            if node.lease is not None:
                os.close(node.lease)
            if node.process.poll() is None:
                node.process.terminate()
        for node in self.started.values():
            try:
                node.process.wait(15 * SLOWER)
            except subprocess.TimeoutExpired:
                node.process.kill()
                node.process.wait(5 * SLOWER)


Maker = Callable[[int], Nodes]


@contextlib.contextmanager
def making(folder: Path, image: Image) -> Iterator[Maker]:
    """Make clusters of so many nodes; they are ended at the end, and must leave no temporary file."""
    made: list[Nodes] = []

    def make(count: int) -> Nodes:
        made.append(Nodes(folder, image, count))
        return made[-1]

    try:
        yield make
    finally:
        for cluster in made:
            cluster.end()
    ended = [node for cluster in made for node in cluster.started.values() if node.exit_code() != -signal.SIGKILL]
    left = [node.temp_dir for node in ended if node.temp_dir.exists()]
    assert not left, f"temporary folders were left: {left}"


def _of_case(function: Callable[..., None], case: tuple[Any, ...], nodes: Maker) -> None:
    function(nodes, *case)


class Scenarios:
    """The tests of a file whose agents mostly wait. They run at once, and each test is the outcome of one."""

    def __init__(self) -> None:
        self.all: dict[str, Callable[[Maker], None]] = {}

    def __call__(self, function: Callable[..., None]) -> Callable[..., None]:
        """Decorator: add one."""
        self.all[function.__name__] = function
        return function

    def each(self, *cases: tuple[Any, ...]) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Decorator: add one for each tuple of arguments."""

        def add(function: Callable[..., None]) -> Callable[..., None]:
            for case in cases:
                name = f"{function.__name__}[{'-'.join(map(str, case))}]"
                self.all[name] = functools.partial(_of_case, function, case)
            return function

        return add

    def test(self) -> Callable[..., None]:
        """The test of a file; to be made last."""

        @pytest.mark.parametrize("name", self.all)
        def test_scenario(name: str, outcomes: dict[str, Future[None]]) -> None:
            outcomes[name].result(timeout=120)

        return test_scenario


def _left(mark: str, patience_s: float = 3.0 * SLOWER) -> dict[int, str]:
    """What still runs after a moment; who was killed just now needs one."""
    deadline = time.monotonic() + patience_s
    while True:
        found = processes_with(MARK, mark)
        found.pop(os.getpid(), None)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


@contextlib.contextmanager
def marked(mark: str) -> Iterator[None]:
    """Whatever is started inside and is left at the end is killed, and fails the test."""
    before = os.environ.get(MARK)
    os.environ[MARK] = mark
    try:
        yield
    finally:
        left = _left(mark)
        kill_all(left)
        os.environ.pop(MARK) if before is None else os.environ.update({MARK: before})
    assert not left, f"processes were left: {left}"
