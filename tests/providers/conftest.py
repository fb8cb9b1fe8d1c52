"""Local clusters in a home of their own, with a stand-in for Ray."""

import json
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from child_processes import ended

sys.path.insert(0, str(Path(__file__).parents[1] / "node"))
from collections.abc import Iterator, Sequence

from dstack_hosts.fixtures import first, user  # noqa: F401 - fixtures
from fake_dstack import FakeDstack
from node_harness import Image, make_image, marked
from slurm_commands import Commands

from cloudrl.providers.dstack import plan, provider
from cloudrl.providers.local import processes
from cloudrl.providers.local.plan import LocalPlan, free_ports
from cloudrl.providers.local.provider import LocalProvider
from cloudrl.providers.local.state import LocalState
from cloudrl.spec import Cluster
from cloudrl.transport import Connection

# A starter that stops at the first look at a given phase, and says so. "start" is the first look of all.
STARTER = """
import json, sys, time
from dataclasses import asdict, replace
from cloudrl.providers.local.provider import LocalProvider
from cloudrl.providers.local.state import LocalState
from cloudrl.spec import Cluster

python, model, phase, *options = sys.argv[1:]
provider = LocalProvider()
plan = provider.plan(Cluster.load({"name": "one", "nodes": 2, "models": [model]}))
here = "coming up"
plan = replace(plan, commands=tuple((python, *command[1:], *options) for command in plan.commands))

def look(status):
    if phase in ("start", here, status.phase, *(node.phase for node in status.nodes)):
        print(json.dumps(asdict(plan.state)), flush=True)
        time.sleep(600)

provider.up(plan, on_status=look, detach=False)
here = "after"
look(provider.status("one"))
"""


@dataclass
class Home:
    """Where the clusters of one test are."""

    folder: Path
    image: Image
    plans: list[LocalPlan] = field(default_factory=list)

    @property
    def control(self) -> Path:
        """Where the stand-in for Ray is steered."""
        return self.folder / "ray-control"

    def plan(
        self, name: str = "one", *options: str, nodes: int = 2, python: str | None = None, **fields: Any
    ) -> LocalPlan:
        """A plan whose agents run in the image that has no real Ray, unless another Python is named."""
        fields = {"models": [str(self.folder / "model")], **fields}
        # not 8265, which another Ray on this machine may take as soon as ours has let go of it
        [dashboard_port] = free_ports(1, cluster=name)
        section = {"dashboard_port": dashboard_port}
        plan = LocalProvider().plan(Cluster.load({"name": name, "nodes": nodes, "local": section, **fields}))
        python = python or str(self.image.python)
        commands = tuple((python, *command[1:], *options) for command in plan.commands)
        self.plans.append(replace(plan, commands=commands))
        return self.plans[-1]

    def up(self, name: str = "one", *options: str, **fields: Any) -> Connection:
        return LocalProvider().up(self.plan(name, *options, **fields), timeout_s=60)

    def kill_starter(
        self, phase: str, *options: str, python: str | None = None, signals: Sequence[int] = (signal.SIGKILL,)
    ) -> LocalState:
        """Start a cluster, kill the starter at a phase while processes of it run, and return what it had decided."""
        words = [sys.executable, "-c", STARTER, python or str(self.image.python), str(self.folder / "model")]
        starter = subprocess.Popen([*words, phase, *options], stdout=subprocess.PIPE)
        with starter, ended(starter):
            assert starter.stdout is not None
            value = json.loads(starter.stdout.readline())
            assert processes.of_cluster(value["id"])
            for number in signals:
                starter.send_signal(number)
                time.sleep(0.2)
        return LocalState(**{**value, "agent_ports": tuple(value["agent_ports"])})


@pytest.fixture
def dstack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDstack:
    """A dstack server in memory, which is the one that is configured."""
    fake = FakeDstack()
    monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path))
    monkeypatch.setattr("dstack.api.Client", fake.client)
    for module in (plan, provider):
        monkeypatch.setattr(module, "connect", lambda: fake.server)
    return fake


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """A Python with a stand-in for Ray."""
    return make_image(tmp_path_factory.mktemp("image"))


@pytest.fixture
def home(tmp_path: Path, image: Image, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home of its own; processes and temporary folders that are left in it fail the test."""
    made = Home(tmp_path, image)
    made.control.mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FAKE_RAY", str(made.control))
    try:
        with marked(uuid.uuid4().hex):
            yield made
    finally:
        left = [plan.state.ray_temp_dir for plan in made.plans if Path(plan.state.ray_temp_dir).exists()]
        for folder in left:
            shutil.rmtree(folder)
    assert not left, f"temporary folders were left: {left}"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Puts commands of these texts on PATH, and nothing else of Slurm; home is an empty folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path / "cloudrl"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")

    def put(**texts: str) -> None:
        for name, text in texts.items():
            path = folder / name
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)

    return put
