"""Clusters on rented machines: lost, slow, broken and forgotten ones. None may cost money without work.

All scripts run side by side in one lab with a cloud and a stand-in for Ray; each test looks at what became of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from dstack_hosts.cloud import Cloud, MachineType
from dstack_hosts.fixtures import start_or_skip
from dstack_hosts.lab import Lab, hidden_folders
from dstack_hosts.runs import until
from dstack_hosts.standin.config import ImageConfig
from dstack_hosts.user import SHAPE, User
from node_image import make_image

if TYPE_CHECKING:
    from dstack_hosts.cloud import Machine

pytestmark = pytest.mark.dstack

IDLE_S = 10
"""After which a fleet gives an idle machine back."""
PRICE, SPOT_PRICE = 36.0, 9.0
FAKE_RAY = ("--env", "FAKE_RAY=/checkpoints/ray", "--setup", "mkdir -p /checkpoints/ray")
IMAGES = {
    "slow": ImageConfig(pull_s=20),
    "gone": ImageConfig(pull_error="manifest for gone not found: manifest unknown: manifest unknown"),
    "no-sshd": ImageConfig(sshd=False),
    "no-python": ImageConfig(python3=False),
}


@dataclass
class Script:
    """One user with one cluster on a fleet of its own, and what came of it."""

    user: User
    name: str
    nodes: int = 2
    spare: int = 1
    spot: bool = False
    output: str = ""
    seen: dict[str, Any] = field(default_factory=dict)

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
            f"type: fleet\nname: {self.name}\nplacement: cluster\nnodes: 0..{self.nodes + self.spare}\n"
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
        self.output = self.user.types(*self.words(*words, image=image), code=code, timeout_s=300).stdout

    def loses(self, rank: int) -> None:
        """The cloud takes the machine of a rank, and dstack starts the run again; until it is READY."""
        attempts = self.lab.runs.attempts(self.name)
        [address] = [str(each.address) for each in self.lab.runs.submissions(self.name) if each.rank == rank]
        [machine] = [each for each in self.rented() if each.host.address == address]
        cloud_of(self.lab).interrupt(machine)
        until(lambda: self.lab.runs.attempts(self.name) > attempts, 120, lambda: self.lab.runs.status(self.name))
        until(lambda: self.lab.runs.status(self.name) == "running", 120, lambda: self.lab.runs.status(self.name))
        self.user.wait_ready(self.name)

    def ends(self, timeout_s: float = 150) -> None:
        """Wait until the run is over and all its machines are given back."""
        over = ("done", "failed", "terminated")
        until(lambda: self.lab.runs.status(self.name) in over, timeout_s, lambda: str(self.user.status(self.name)))
        self.seen = self.user.status(self.name)
        until(lambda: not self.rented(), timeout_s, lambda: f"still rented: {self.rented()}")

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
    script.up()
    script.loses(1)
    script.loses(0)
    script.down()


def no_replacement(script: Script) -> None:
    script.up("--set", "dstack.retry={on_events: [no-capacity, interruption, error], duration: 15s}")
    cloud = cloud_of(script.lab)
    cloud.limit(script.name, spot_capacity=0)
    cloud.interrupt(script.rented()[1])


def slow_pull(script: Script) -> None:
    script.up(image="slow")
    script.down()


def forgotten(script: Script) -> None:
    """The laptop dies while the cluster comes up."""
    client = script.lab.popen(*script.words("--down-when-idle", "5s"))
    until(script.rented, 60, lambda: client.output)
    client.kill()


SCRIPTS: dict[str, tuple[Callable[[Script], None], dict[str, Any]]] = {
    "lost-once": (lost_once, {"spot": True}),
    "lost-twice": (lost_twice, {"spot": True}),
    "no-replacement": (no_replacement, {"spot": True}),
    "slow-pull": (slow_pull, {}),
    "failed-pull": (lambda script: script.up(image="gone", code=4), {"nodes": 1}),
    "no-sshd": (lambda script: script.up(image="no-sshd", code=4), {"nodes": 1}),
    "no-python": (lambda script: script.up(image="no-python", code=4), {"nodes": 1}),
    "unknown-user": (lambda script: script.up("--set", "user='12345'", code=4), {}),
    "idle": (lambda script: script.up("--down-when-idle", "15s"), {"nodes": 1}),
    "cost-cap": (lambda script: script.up("--max-cost", "0.3"), {"nodes": 1}),
    "forgotten": (forgotten, {"nodes": 1}),
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Script]]]:
    """All scripts, started at once, each in a thread."""
    image = make_image(tmp_path_factory.mktemp("image"))
    folder = image.python.parent.parent
    cloud = Cloud([MachineType(name, price=PRICE, spot_price=SPOT_PRICE) for name in SCRIPTS])
    lab = start_or_skip(
        Lab(
            hosts=24, cloud=cloud, images=IMAGES, path_first=str(image.python.parent),
            binds=[*hidden_folders(), str(folder)],
        )
    )  # fmt: skip
    try:
        user = User(lab)
        with ThreadPoolExecutor(len(SCRIPTS)) as threads:

            def play(name: str) -> Script:
                act, fields = SCRIPTS[name]
                script = Script(user, name, **fields)
                script.fleet()
                act(script)
                script.ends()
                return script

            yield {name: threads.submit(play, name) for name in SCRIPTS}
    finally:
        lab.stop()


@pytest.mark.parametrize("name", SCRIPTS)
def test_nothing_is_paid_for_without_work(scripts: dict[str, Future[Script]], name: str) -> None:
    script = scripts[name].result(timeout=400)
    assert script.rented() == []
    spent = sum((each.ended_at - each.rented_at) / 3600 * each.price for each in script.machines if each.ended_at)
    print(name, script.seen["phase"], script.seen["reason"], script.seen["cost"], spent, len(script.machines))
