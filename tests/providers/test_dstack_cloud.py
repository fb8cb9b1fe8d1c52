"""Clusters on rented machines: lost, slow, broken and forgotten ones. None may cost money without work.

Scripts run side by side in one lab with a cloud and a stand-in for Ray; each test looks at what became of one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
from dstack_hosts.cloud import Cloud, Machine, MachineType
from dstack_hosts.fixtures import start_or_skip
from dstack_hosts.lab import Lab, hidden_folders
from dstack_hosts.runs import until
from dstack_hosts.standin.config import ImageConfig
from dstack_hosts.user import SHAPE, User
from node_image import make_image

from cloudrl.render.agent import write_agent

pytestmark = pytest.mark.dstack

AT_ONCE = 6  # scripts; a server has one thread, of which each takes a tenth by looking at its run
IDLE_S = 10  # after which a fleet gives an idle machine back
PRICE, SPOT_PRICE = 36.0, 9.0
FAKE_RAY = ("--env", "FAKE_RAY=/checkpoints/ray", "--setup", "mkdir -p /checkpoints/ray")
IMAGES = {
    "slow": ImageConfig(pull_s=20),
    "gone": ImageConfig(pull_error="manifest for gone not found: manifest unknown: manifest unknown"),
    "too-large": ImageConfig(pull_error="context deadline exceeded"),
    "no-sshd": ImageConfig(sshd=False),
    "no-python": ImageConfig(python3=False),
}


@dataclass
class Script:
    """One user with one cluster on a fleet of its own, and what came of it."""

    user: User
    name: str
    nodes: int = 2
    spot: bool = False
    output: str = ""
    status: dict[str, Any] = field(default_factory=dict)

    @property
    def lab(self) -> Lab:
        return self.user.lab

    @property
    def machines(self) -> list[Machine]:
        """All that were ever rented for it."""
        return [each for each in cloud_of(self.lab).machines if each.type.name == self.name]

    def rented(self) -> list[Machine]:
        return [each for each in self.machines if each.ended_at is None]

    def fleet(self) -> None:
        path = self.lab.home / f"{self.name}.fleet.dstack.yml"
        policy = "spot" if self.spot else "on-demand"
        path.write_text(
            f"type: fleet\nname: {self.name}\nplacement: cluster\nnodes: 0..{self.nodes + 1}\n"
            f"instance_types: [{self.name}]\nspot_policy: {policy}\nidle_duration: {IDLE_S}s\n"
        )
        done = self.lab.run("dstack", "apply", "-y", "-d", "-f", path.name, cwd=path.parent)
        assert done.returncode == 0, done.stdout

    def words(self, *words: str, image: str = "any") -> list[str]:
        shape = [image if word == "any" else word for word in SHAPE]
        policy = ["--set", "dstack.spot_policy=spot"] if self.spot else []
        at = ["--on", "dstack", "--set", f"dstack.fleets=[{self.name}]", "--nodes", str(self.nodes)]
        return ["cloudrl", "up", self.name, *at, *shape, *policy, *FAKE_RAY, *words, "-y"]

    def up(self, *words: str, image: str = "any", code: int = 0) -> None:
        self.output = self.user.types(*self.words(*words, image=image), code=code, timeout_s=400).stdout

    def loses(self, rank: int, *, notice_s: float = 0.0) -> None:
        """The cloud takes the machine of a rank, and dstack starts the run again; until it is READY."""
        attempts = self.lab.runs.attempts(self.name)
        [address] = [str(each.address) for each in self.lab.runs.submissions(self.name) if each.rank == rank]
        [machine] = [each for each in self.rented() if each.host.address == address]
        cloud_of(self.lab).interrupt(machine, notice_s=notice_s)
        until(lambda: self.lab.runs.attempts(self.name) > attempts, 240, lambda: self.lab.runs.status(self.name))
        until(lambda: self.lab.runs.status(self.name) == "running", 240, lambda: self.lab.runs.status(self.name))
        self.user.wait_ready(self.name)

    def ends(self, timeout_s: float = 300) -> None:
        """Wait until the run is over and all its machines are given back."""
        over = ("done", "failed", "terminated")
        until(lambda: self.lab.runs.status(self.name) in over, timeout_s, lambda: str(self.user.status(self.name)))
        self.status = self.user.status(self.name)
        until(lambda: not self.rented(), timeout_s, lambda: f"still rented: {self.rented()}")

    def server_cost(self) -> float:
        """Dollars, from the server's own prices and times of each node's attempts."""
        found = self.lab.server.call("/api/project/main/runs/get", {"run_name": self.name})
        return sum(_dollars(each) for job in found["jobs"] for each in job["job_submissions"])

    def down(self) -> None:
        self.user.types("cloudrl", "down", self.name, "-y")


def cloud_of(lab: Lab) -> Cloud:
    assert lab.cloud is not None
    return lab.cloud


def lost_once(script: Script) -> None:
    script.up()
    script.loses(1)
    script.down()


def lost_twice(script: Script) -> None:
    """The first time with notice: the machine shuts down, and the head sees at once that its agent is gone."""
    script.up()
    script.loses(1, notice_s=30)
    script.loses(0)
    script.down()


def no_replacement(script: Script) -> None:
    script.up("--set", "dstack.retry={on_events: [no-capacity, interruption, error], duration: 15s}")
    cloud = cloud_of(script.lab)
    cloud.limit(script.name, spot_capacity=0)
    cloud.interrupt(script.rented()[1])


def forgotten(script: Script) -> None:
    """The laptop dies while the cluster comes up."""
    client = script.lab.popen(*script.words("--down-when-idle", "5s"))
    until(script.rented, 60, lambda: client.output)
    client.kill()


def no_python(script: Script) -> None:
    """A raw `dstack apply`, without a client that watches."""
    text = script.user.types(*script.words("--dry-run", image="no-python")[:-1]).stdout
    path = script.lab.home / f"{script.name}.dstack.yml"
    path.write_text(text[text.index("type: task") :])
    write_agent(script.lab.home, for_cpu="cloudrl-node-cpu.pyz" in text)
    script.lab.runs.apply(path)


def _dollars(submission: Mapping[str, Any]) -> float:
    machine = submission["job_provisioning_data"]
    if machine is None:
        return 0.0
    begin, end = (datetime.fromisoformat(submission[name]) for name in ("submitted_at", "finished_at"))
    return float(machine["price"]) * (end - begin).total_seconds() / 3600


@dataclass(frozen=True)
class Play:
    """What is done, on which fleet, and what `status` says in the end; its reason is a pattern."""

    act: Callable[[Script], None]
    phase: str
    reason: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    output: str = ""
    attempts: int = 1
    earlier: str = ""


ONE, SPOT = {"nodes": 1}, {"spot": True}
PLAYS = {
    "lost-once": Play(lost_once, "down", fields=SPOT, attempts=2),
    "lost-twice": Play(lost_twice, "down", fields=SPOT, attempts=3, earlier=", and its agent is gone"),
    "no-replacement": Play(no_replacement, "failed", "there is no such machine to be had now", SPOT, attempts=2),
    "slow-pull": Play(lambda script: (script.up(image="slow"), script.down()), "down"),
    "failed-pull": Play(lambda script: script.up(image="gone", code=4), "down", "", ONE, "docker pull gone", 2),
    "pull-timeout": Play(lambda script: script.up(image="too-large", code=4), "down", "", ONE, "20 minutes", 3),
    "read-only": Play(
        lambda script: script.up("--volume", "/elsewhere:/checkpoints", code=4),
        "down",
        "",
        ONE,
        "--volume /var/lib/cloudrl/checkpoints:/checkpoints",
        3,
    ),
    "no-sshd": Play(lambda script: script.up(image="no-sshd", code=4), "down", "", ONE, "before its agent started", 3),
    "no-python": Play(no_python, "failed", "no python3 in this image", ONE),
    "unknown-user": Play(
        lambda script: script.up("--set", "user='12345'", code=4),
        "failed",
        "cannot be written",
        {},
        "cannot be written",
    ),
    "idle": Play(lambda script: script.up("--down-when-idle", "40s"), "down", "idle for 40s"),
    "cost-cap": Play(lambda script: script.up("--max-cost", "0.9"), "down", r"cost \$0\.9\d of \$0\.90", ONE),
    "forgotten": Play(forgotten, "down", "idle for 5s", ONE),
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Script]]]:
    """All scripts, each in a thread."""
    cloud = Cloud([MachineType(name, price=PRICE, spot_price=SPOT_PRICE) for name in PLAYS])
    image = make_image(tmp_path_factory.mktemp("image"))
    lab = start_or_skip(
        Lab(
            hosts=24, cloud=cloud, writable=["/home", "/var", "/mnt/disks"],
            images=IMAGES, path_first=str(image.python.parent),
            binds=[*hidden_folders(), str(image.python.parent.parent)],
        )
    )  # fmt: skip
    threads = ThreadPoolExecutor(AT_ONCE)
    try:
        user = User(lab)

        def play(name: str) -> Script:
            script = Script(user, name, **PLAYS[name].fields)
            script.fleet()
            PLAYS[name].act(script)
            script.ends()
            return script

        yield {name: threads.submit(play, name) for name in PLAYS}
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        lab.stop()  # which ends what still waits, after Ctrl-C


@pytest.mark.parametrize("name", PLAYS)
def test_nothing_is_paid_for_without_work(scripts: dict[str, Future[Script]], name: str) -> None:
    script, play = scripts[name].result(), PLAYS[name]
    status = script.status
    assert (status["phase"], bool(re.search(play.reason, status["reason"]))) == (play.phase, True), status["reason"]
    assert script.lab.runs.attempts(name) >= play.attempts
    assert play.output in script.output
    assert play.earlier in "".join(each["reason"] for each in status["previous_attempts"])
    assert script.rented() == []
    assert status["cost"] == pytest.approx(script.server_cost(), rel=0.01)
    idle = sum(each.dollars for each in script.machines) - status["cost"]
    idle_s = idle / script.machines[0].price * 3600 / len(script.machines)
    assert idle_s < IDLE_S + 60, "a machine's boot, its last minute without a run, and the server's slow looks"
