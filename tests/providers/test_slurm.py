"""Provider slurm on a real Slurm, from a user's own machine: all that it can reach is the login node, through ssh."""

import json
import sys
from collections.abc import Iterator

import pytest
from dstack_hosts.runs import until
from slurm_nodes import SlurmNodes
from slurm_nodes.fixtures import start_or_skip
from slurm_nodes.laptop import Laptop

pytestmark = [pytest.mark.slurm, pytest.mark.root]

UP_S = 300.0
CLUSTER = """\
name: lab
nodes: 2
data: [addition]
models: [tiny-qwen2]
slurm:
  login: alice@login
  container: bare
  python: {python}
  volumes: [/shared/checkpoints:/checkpoints]
  mem: 6000
"""
UP = ("cloudrl", "up", "-f", "lab.yml", "--on", "slurm", "-y")
PROBE = """\
name: probe
device: cpu
overrides: {data.train_files: /no, data.val_files: /no, actor_rollout_ref.model.path: /no}
entrypoint: [python3, -c, "import ray; ray.init(log_to_driver=False); print('nodes', len(ray.nodes()))"]
"""


@pytest.fixture(scope="module")
def laptop(shared_slurm: SlurmNodes) -> Iterator[Laptop]:
    """With the cluster `lab` READY; afterwards it is down, and nothing of it is left on any node."""
    mine = Laptop(shared_slurm)
    mine.write("lab.yml", CLUSTER.format(python=sys.executable))
    mine.write("probe.yml", PROBE)
    mine.types(*UP, timeout_s=UP_S)
    yield mine
    mine.types("cloudrl", "down", "lab", "-y")
    assert not shared_slurm.remains()
    shared_slurm.login.run("rm", "-rf", "/home/alice/.cloudrl", "/home/alice/.cache", "/shared/checkpoints")


def probe(laptop: Laptop, submission_id: str) -> str:
    """The log of a job that counts the nodes of Ray."""
    laptop.types("cloudrl", "submit", "probe.yml", "--submission-id", submission_id)
    return laptop.types("cloudrl", "jobs", "logs", submission_id)


def status_of(laptop: Laptop) -> dict[str, object]:
    found: dict[str, object] = json.loads(laptop.run("cloudrl", "status", "lab", "--json").stdout)
    return found


def test_status_shows_the_nodes_and_the_list_shows_the_cluster(laptop: Laptop) -> None:
    status = status_of(laptop)
    assert (status["provider"], status["phase"], status["facts"]["nodes"]) == ("slurm", "ready", 2)
    assert [node["ip"] for node in status["nodes"]] == ["10.78.0.10", "10.78.0.11"]  # type: ignore[attr-defined]
    assert status["facts"]["checkpoint_dir"] == "/shared/checkpoints"
    assert status["dashboard_url"] == "http://127.0.0.1:8265"
    assert "ready" in laptop.types("cloudrl", "status")  # the only one
    assert "cluster 'lab' is up already: job" in laptop.types(*UP, code=2)
    assert "nodes 2" in probe(laptop, "first")


def test_the_logs_of_both_nodes(laptop: Laptop) -> None:
    said = laptop.types("cloudrl", "logs", "--log", "raylet.out")
    assert {line.split()[2] for line in said.splitlines()} == {"0", "1"}


def test_a_plain_ssh_to_a_node_is_not_needed_and_no_port_is_open_to_others(laptop: Laptop, shared_slurm) -> None:
    """The nodes have no sshd of their own, and what listens on them asks for a token."""
    connect = "import socket,sys; s=socket.socket(); s.settimeout(2); sys.exit(s.connect_ex(('10.78.0.10', 22)) == 0)"
    assert shared_slurm.login.run(sys.executable, "-c", connect).returncode == 0
    kept = next((shared_slurm.home / "alice/.cloudrl/slurm").glob("*/0/key"))
    assert kept.stat().st_mode & 0o777 == 0o600
    seen_as_bob = shared_slurm.login.run("cat", str(kept).replace(str(shared_slurm.home), "/home"), user="bob")
    assert "Permission denied" in seen_as_bob.stderr


def test_a_cluster_that_cannot_start_says_why_and_is_gone(laptop: Laptop) -> None:
    other = ("cloudrl", "up", "other", *UP[2:], "--nodes", "1", "--set")
    said = laptop.types(*other, "slurm.python=/no/python", code=4, timeout_s=UP_S)
    assert "there is no /no/python on this node" in said
    assert laptop.run("cloudrl", "status", "other").returncode == 4
    assert "invalid partition specified: nowhere" in laptop.types(*other, "slurm.partition=nowhere", code=2)


def test_a_tunnel_follows_the_cluster_to_other_nodes(laptop: Laptop, shared_slurm: SlurmNodes) -> None:
    """Slurm queues it again when the first node is lost. The laptop's ports stay."""
    before = laptop.types("cloudrl", "env").splitlines()
    shared_slurm.nodes[0].power_off()
    try:
        [job] = [int(each) for each in shared_slurm.login.run("squeue", "-h", "-o", "%i").stdout.split()]
        shared_slurm.jobs.wait(job, "PENDING")
        shared_slurm.jobs.release_now(job)
        output = lambda: shared_slurm.jobs.output(job)  # noqa: E731
        until(lambda: output().count("READY: 2 nodes") == 2, UP_S, output)
        until(lambda: status_of(laptop)["phase"] == "ready", UP_S, lambda: str(status_of(laptop)))
    finally:
        shared_slurm.nodes[0].replace_disk()  # with what the lost start has left there
        shared_slurm.nodes[0].power_on()
        shared_slurm.nodes[0].wait_until_up()
    status = status_of(laptop)
    assert [each["attempt"] for each in status["previous_attempts"]] == [1]  # type: ignore[attr-defined]
    assert status["dashboard_url"] == "http://127.0.0.1:8265"
    assert "nodes 2" in probe(laptop, "second")
    changed = set(before) ^ set(laptop.types("cloudrl", "env").splitlines())
    assert {line.partition("=")[0].removeprefix("export ") for line in changed} == {"RAY_AUTH_TOKEN"}


def test_where_a_login_node_refuses_steps_the_way_is_ssh_to_the_node() -> None:
    """Some sites let users log in to the nodes of their jobs, and run nothing from the login node."""
    site = start_or_skip(SlurmNodes(1, node_ssh=True))
    try:
        refuses = "#!/bin/sh\necho no steps from here >&2; exit 1\n"
        site.login.run("install", "-m", "755", "/dev/stdin", "/usr/local/bin/srun", text=refuses)
        laptop = Laptop(site)
        laptop.write("lab.yml", CLUSTER.format(python=sys.executable))
        laptop.write("probe.yml", PROBE)
        laptop.types(*UP, "--nodes", "1", timeout_s=UP_S)
        assert "nodes 1" in probe(laptop, "only")
        laptop.types("cloudrl", "down", "lab", "-y")
    finally:
        site.stop()
