"""Provider slurm on a real Slurm, from a user's own machine: all that it can reach is the login node, through ssh."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_nodes import SlurmNodes

pytestmark = [pytest.mark.slurm, pytest.mark.root]

CLOUDRL = str(Path(sys.executable).with_name("cloudrl"))
UP_S, TRAINING_S = 300.0, 600.0
CLUSTER = """\
name: lab
nodes: 2
data: [addition]
models: [tiny-adder]
slurm:
  login: alice@login
  container: bare
  python: {python}
  volumes: [/shared/checkpoints:/checkpoints]
  mem: 6000
"""


class Laptop:
    """`cloudrl` on a user's own machine, which has no Slurm."""

    def __init__(self, slurm: SlurmNodes) -> None:
        self._node = slurm.laptop
        self._env = {"CLOUDRL_HOME": "/root/.cloudrl", "COLUMNS": "200"}
        (self._node.path("/root") / "lab.yml").write_text(CLUSTER.format(python=sys.executable))

    def __call__(self, *words: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        return self._node.run(CLOUDRL, *words, env=self._env, cwd="/root", timeout_s=timeout_s)

    def ok(self, *words: str, timeout_s: float = 120.0) -> str:
        """Its standard output; it must succeed."""
        done = self(*words, timeout_s=timeout_s)
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def laptop(shared_slurm: SlurmNodes) -> Iterator[Laptop]:
    """With the cluster `lab` READY; afterwards it is down, and nothing of it is left on any node."""
    mine = Laptop(shared_slurm)
    mine.ok("up", "-f", "lab.yml", "--on", "slurm", "-y", timeout_s=UP_S)
    yield mine
    mine.ok("down", "lab", "-y")
    assert not shared_slurm.remains()
    shared_slurm.login.run("rm", "-rf", "/home/alice/.cloudrl", "/home/alice/.cache", "/shared/checkpoints")


def test_status_shows_the_nodes_and_the_list_shows_the_cluster(laptop: Laptop) -> None:
    status = json.loads(laptop.ok("status", "lab", "--json"))
    assert (status["provider"], status["phase"], status["nodes_wanted"]) == ("slurm", "ready", 2)
    assert [node["ip"] for node in status["nodes"]] == ["10.78.0.10", "10.78.0.11"]
    assert status["checkpoint_dir"] == "/shared/checkpoints"
    assert status["dashboard_url"] == "http://127.0.0.1:8265"
    assert "ready" in laptop.ok("status")  # the only one
    refused = laptop("up", "-f", "lab.yml", "--on", "slurm", "-y")
    assert refused.returncode == 2
    assert "cluster 'lab' is up already: job" in refused.stderr


def test_a_job_trains_on_both_nodes_and_its_model_is_merged_on_the_laptop(laptop: Laptop) -> None:
    laptop.ok("submit", "grpo-tiny", "--steps", "2", "--name", "run", timeout_s=TRAINING_S)
    listed = json.loads(laptop.ok("checkpoints", "list", "--json"))
    assert "run" in json.dumps(listed)
    laptop.ok("checkpoints", "merge", "--to", "/root/model", timeout_s=TRAINING_S)
    assert "config.json" in laptop._node.run("ls", "/root/model").stdout


def test_a_plain_ssh_to_a_node_is_not_needed_and_no_port_is_open_to_others(laptop: Laptop, shared_slurm) -> None:
    """The nodes have no sshd of their own, and what listens on them asks for a token."""
    probe = "import socket,sys; s=socket.socket(); s.settimeout(2); sys.exit(s.connect_ex(('10.78.0.10', 22)) == 0)"
    assert shared_slurm.login.run(sys.executable, "-c", probe).returncode == 0
    kept = next((shared_slurm.home / "alice/.cloudrl/slurm").glob("*/0/key"))
    assert kept.stat().st_mode & 0o777 == 0o600
    assert (
        "Permission denied"
        in shared_slurm.login.run("cat", str(kept).replace(str(shared_slurm.home), "/home"), user="bob").stderr
    )


def test_a_cluster_that_cannot_start_says_why_and_is_gone(laptop: Laptop) -> None:
    failed = laptop(
        "up",
        "other",
        "-f",
        "lab.yml",
        "--on",
        "slurm",
        "-y",
        "--set",
        "slurm.python=/no/python",
        "--nodes",
        "1",
        timeout_s=UP_S,
    )
    assert failed.returncode == 4
    assert "there is no /no/python on this node" in failed.stderr
    assert laptop("status", "other").returncode == 4
    refused = laptop(
        "up", "other", "-f", "lab.yml", "--on", "slurm", "-y", "--set", "slurm.partition=nowhere", "--nodes", "1"
    )
    assert refused.returncode == 2
    assert "invalid partition specified: nowhere" in refused.stderr
