"""A cluster by `cloudrl up --on dstack`: status, secrets, tunnel, training."""

import json
import re

import pytest
from dstack_hosts.runs import until
from dstack_hosts.user import MODEL, SHAPE, User

pytestmark = [pytest.mark.dstack, pytest.mark.ray]


def ssh_of(user: User) -> list[str]:
    """Process numbers of the ssh that forward ports in the lab."""
    return user.lab.run("pgrep", "-f", "^ssh .* -N -L").stdout.split()


def test_status(user: User, first: str) -> None:
    look = user.status(first)
    assert (look["phase"], [node["phase"] for node in look["nodes"]]) == ("ready", ["ready", "ready"])
    assert len(look["previous_attempts"]) == user.lab.runs.attempts(first) - 1


def test_the_logs_of_both_nodes(user: User, first: str) -> None:
    """Each host has a disk of its own for them."""
    said = user.types("cloudrl", "logs", "--cluster", first, "--log", "raylet.out").stdout
    assert {line.split()[2] for line in said.splitlines()} == {"0", "1"}


def test_a_second_one_of_its_name(user: User, first: str) -> None:
    done = user.types("cloudrl", "up", first, "--on", "dstack", *SHAPE, "-y", code=2)
    assert f"a run '{first}' already exists: running" in done.stdout


def test_no_secret_stands_in_a_log_or_a_process_list(user: User, first: str) -> None:
    found = re.search(r"RAY_AUTH_TOKEN=(\w{64})", user.types("cloudrl", "env", "--cluster", first).stdout)
    assert found is not None
    assert found[1] not in user.lab.runs.log(first, 0) + user.lab.runs.log(first, 1)
    processes = [process for host in user.hosts_of(first) for process in host.processes()]
    assert not [process for process in processes if found[1] in " ".join(process)]


def test_a_tunnel_daemon_that_is_killed_blocks_nothing(user: User, first: str) -> None:
    assert "http://localhost:8265" in user.types("cloudrl", "attach", first).stdout
    path = next(user.lab.home.glob(f".cloudrl/dstack/*/{first}/tunnel/tunnel.json"))
    before = json.loads(path.read_text())["pid"]
    user.lab.run("kill", "-KILL", str(before))
    until(lambda: ssh_of(user) == [], 10, lambda: f"ssh {ssh_of(user)} has outlived its daemon")
    assert "http://localhost:8265" in user.types("cloudrl", "attach", first).stdout
    assert json.loads(path.read_text())["pid"] != before
    assert "closed the tunnel" in user.types("cloudrl", "detach", first).stdout
    assert ssh_of(user) == []
    assert "there was no tunnel" in user.types("cloudrl", "detach", first).stdout
    user.types("cloudrl", "attach", first)


@pytest.mark.slow  # as in test_one_definition.py, and once more
def test_a_training_on_two_disks_goes_on_where_it_stopped(user: User, first: str) -> None:
    """Real verl over the hosts' network; each rank's shard is on its own host's disk, and is loaded from there."""

    def shards(step: int) -> list[list[str]]:
        pattern = f"trained/global_step_{step}/actor/model_world_size_2_rank_*.pt"
        folders = [host.path("/var/lib/cloudrl/checkpoints") for host in user.hosts_of(first)]
        return [[path.name for path in folder.glob(pattern)] for folder in folders]

    # the agents of a durable job would copy each shard to the other disk
    words = (*MODEL, "--no-durable", "--name", "trained", "--cluster", first, "--steps")
    done = user.types("cloudrl", "submit", "grpo-tiny", *words, "2", timeout_s=500)
    assert "step 2/2" in done.stdout
    placed = shards(2)
    assert sorted(placed) == [[f"model_world_size_2_rank_{rank}.pt"] for rank in (0, 1)]

    again = user.types("cloudrl", "submit", "grpo-tiny", *words, "3", timeout_s=500)
    assert "run 'trained' continues from step 2" in again.stdout
    steps = [line.split()[1] for line in again.stdout.splitlines() if line.startswith("step ")]
    assert steps == ["3/3"]
    assert shards(3) == placed  # a rank has to be where its shard is
