"""The command that starts a cluster is killed, at any phase: nothing is left, and the name can be used again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from child_processes import ended
from node_harness import until

from cloudrl.providers.local import processes
from cloudrl.providers.local.provider import LocalProvider
from cloudrl.providers.local.state import LocalState

if TYPE_CHECKING:
    from conftest import Home

pytestmark = pytest.mark.agents
provider = LocalProvider()

# A starter that stops at the first look at a given phase, and says so. "start" is the first look of all.
STARTER = """
import json, sys, time
from dataclasses import asdict, replace
from cloudrl.providers.local.provider import LocalProvider
from cloudrl.spec import Cluster

python, model, phase, *options = sys.argv[1:]
provider = LocalProvider()
plan = provider.plan(Cluster.load({"name": "one", "nodes": 2, "models": [model]}))
here = "coming up"
plan = replace(plan, commands=tuple((python, *command[1:], *options) for command in plan.commands))

def look(status):
    if phase in ("start", status.phase, here):
        print(json.dumps(asdict(plan.state)), flush=True)
        time.sleep(600)

provider.up(plan, on_status=look, detach=False)
here = "after"
look(provider.status("one"))
"""

PHASES = ("start", "ray", "fetch", "barrier", "ready")


def _kill_at(home: Home, phase: str) -> LocalState:
    """Start a cluster, kill the starter at a phase, and return what it had decided."""
    options = ["--import-check=gate"] if phase == "fetch" else []
    holding = {"ray": "hold-0", "barrier": "hold-1"}.get(phase)
    if holding:
        (home.control / holding).touch()
    words = [
        sys.executable,
        "-c",
        STARTER,
        str(home.image.python),
        str(home.folder / "model"),
        phase,
        *options,
    ]
    env = {**os.environ, "GATE": str(home.folder / "gate")}
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=env) as starter, ended(starter):
        assert starter.stdout is not None
        line = starter.stdout.readline()
    if holding:
        (home.control / holding).unlink()
    value = json.loads(line)
    return LocalState(**{**value, "agent_ports": tuple(value["agent_ports"])})


def test_the_next_up_works_whenever_the_last_one_was_killed(home: Home) -> None:
    """Each starter comes right after one that was killed, and is killed a phase later."""
    killed = [_kill_at(home, phase) for phase in PHASES]
    connection = home.up(nodes=1)
    for state in killed:
        assert not processes.of_cluster(state.id)
        assert not Path(state.ray_temp_dir).exists()
        assert connection.cluster_id != state.id
    assert provider.status("one").is_ready
    provider.down("one")


@pytest.mark.parametrize("phase", ["start", "ray"])
def test_down_works(home: Home, phase: str) -> None:
    killed = _kill_at(home, phase)
    provider.down("one")
    assert not processes.of_cluster(killed.id)
    assert not Path(killed.ray_temp_dir).exists()
    assert provider.status("one").phase == "down"


def test_nobody_does_anything(home: Home) -> None:
    killed = _kill_at(home, "ready")
    until(lambda: not processes.of_cluster(killed.id), "all processes end by themselves", timeout_s=10)
    look = provider.status("one")
    assert look.has_failed
    assert look.reason == "the command that started this cluster has died"
    assert provider.down("one") is False
    assert not Path(killed.ray_temp_dir).exists()


def test_a_cluster_that_is_not_detached_ends_with_its_starter_also_when_ready(home: Home) -> None:
    killed = _kill_at(home, "after")
    until(lambda: not processes.of_cluster(killed.id), "all processes end by themselves", timeout_s=10)
    assert provider.status("one").reason == "the command that started this cluster has died"
    provider.down("one")
