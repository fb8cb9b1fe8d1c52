"""Provider `dstack`, with the real server, CLI and ssh, on stand-in hosts. Commands are typed as a user types them."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from dstack_hosts.lab import Lab

pytestmark = [pytest.mark.dstack, pytest.mark.ray]

# `user` and an architecture: without them the server asks an image registry. The stand-in hosts run no images.
CPU = [
    "--nodes", "2", "--image", "any", "--set", "user=root", "--cpu", "x86:1..", "--memory", "1GB..", "--disk", "1GB..",
    "--data", "addition", "--model", "tiny-qwen2",
]  # fmt: skip


@pytest.fixture(scope="module")
def lab(dstack_lab: Lab) -> Iterator[Lab]:
    """The lab with a fleet of its first two hosts, made by `cloudrl fleet create`."""
    dstack_lab.name_of_fleet = "pair"  # type: ignore[attr-defined]
    hosts = [word for host in dstack_lab.hosts[:2] for word in ("--ssh-host", host.address)]
    key = ["--ssh-user", "root", "--ssh-key", str(dstack_lab.fleet_key)]
    done = dstack_lab.run("cloudrl", "fleet", "create", "pair", *hosts, *key, "-y", timeout_s=120)
    assert done.returncode == 0, done.stdout
    assert "fleet pair: 2 machines ready" in done.stdout
    yield dstack_lab
    gone = dstack_lab.run("cloudrl", "fleet", "delete", "pair", "-y", timeout_s=120)
    assert gone.returncode == 0, gone.stdout


@pytest.fixture
def cloudrl(lab: Lab) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Type a command in the lab."""

    def typed(*words: str, code: int = 0, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        done = lab.run("cloudrl", *words, timeout_s=timeout_s)
        assert done.returncode == code, done.stdout
        return done

    return typed


@pytest.fixture
def up(lab: Lab, cloudrl: Callable[..., Any]) -> Iterator[str]:
    """A READY cluster of the two hosts, started by `cloudrl up --on dstack`."""
    done = cloudrl("up", "lab-up", "--on", "dstack", *CPU, "-y", timeout_s=300)
    assert "READY: lab-up with 2 nodes" in done.stdout
    yield "lab-up"
    if lab.runs.status("lab-up") not in ("done", "failed", "terminated"):
        cloudrl("down", "lab-up", "-y", timeout_s=120)


def test_a_fleet_is_listed_and_made_again_without_harm(cloudrl: Callable[..., Any], lab: Lab) -> None:
    [fleet] = json.loads(cloudrl("fleet", "list", "--json").stdout)
    assert [each["status"] for each in fleet["instances"]] == ["idle", "idle"]
    assert fleet["is_ssh"] is True
    hosts = [word for host in lab.hosts[:2] for word in ("--ssh-host", host.address)]
    key = ["--ssh-user", "root", "--ssh-key", str(lab.fleet_key)]
    assert "is there, as declared" in cloudrl("fleet", "create", "pair", *hosts, *key).stdout


def test_a_fleet_that_is_not_there(cloudrl: Callable[..., Any]) -> None:
    done = cloudrl("fleet", "delete", "pear", "-y", code=2)
    assert "no fleet 'pear'; did you mean 'pair'" in done.stdout


def test_a_fleet_is_not_deleted_when_nobody_can_be_asked(cloudrl: Callable[..., Any]) -> None:
    assert "Say it with -y" in cloudrl("fleet", "delete", "pair", code=2).stdout
    assert json.loads(cloudrl("fleet", "list", "--json").stdout)


def test_a_cloud_fleet_without_a_backend(cloudrl: Callable[..., Any]) -> None:
    done = cloudrl("fleet", "create", "cloud", "--gpu", "H100:8", "-y", code=3)
    assert "no backend of project 'main' offers such a machine" in done.stdout


def test_a_cluster_that_no_fleet_can_hold(cloudrl: Callable[..., Any]) -> None:
    words = [word if word != "1GB.." else "9000GB.." for word in CPU]
    assert (
        "no fleet has or can get such a machine"
        in cloudrl("up", "big", "--on", "dstack", *words, "-y", code=3).stdout
    )


def test_up_submit_and_down(cloudrl: Callable[..., Any], lab: Lab, up: str) -> None:
    """The main job: two hosts, a Ray cluster over their network, real verl, checkpoints on each host's own disk."""
    looks = json.loads(cloudrl("status", up, "--json").stdout)
    assert (looks["phase"], [node["phase"] for node in looks["nodes"]]) == ("ready", ["ready", "ready"])
    assert "is there: running" in cloudrl("up", up, "--on", "dstack", *CPU, "-y", code=2).stdout

    name = f"lab-{int(time.time())}"
    done = cloudrl("submit", "grpo-tiny", "--steps", "2", "--name", name, "--cluster", up, timeout_s=420)
    assert re.search(r"step 2/2", done.stdout)
    for host in lab.hosts[:2]:
        shards = list(
            host.path("/checkpoints").glob(f"{name}/global_step_2/actor/model_world_size_2_rank_*.pt")
        )
        assert len(shards) == 1, shards

    cloudrl("down", up, "-y")
    assert lab.runs.status(up) == "terminated"
    for host in lab.hosts[:2]:
        assert host.processes(containers_only=True) == []


def test_no_secret_stands_in_a_file_a_log_or_a_process_list(
    cloudrl: Callable[..., Any], lab: Lab, up: str
) -> None:
    environment = cloudrl("env", "--cluster", up).stdout
    token = re.search(r"RAY_AUTH_TOKEN=(\w+)", environment)
    assert token is not None
    assert token[1] not in lab.runs.log(up, 0) + lab.runs.log(up, 1)
    for host in lab.hosts[:2]:
        assert not any(token[1] in " ".join(process) for process in map(str, host.processes()))
