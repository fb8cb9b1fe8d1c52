"""Provider `dstack`, with the real server, CLI and ssh, on stand-in hosts. Commands are typed as a user types them."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from dstack_hosts.runs import until

if TYPE_CHECKING:
    from pathlib import Path

    from dstack_hosts.lab import Lab

pytestmark = [pytest.mark.dstack, pytest.mark.ray]

Typed = subprocess.CompletedProcess[str]
Type = Callable[..., Typed]
FLEET = "mine"  # of the shared lab's last two hosts; other tests have the first two
# `user` and an architecture: without them the server asks an image registry. The stand-in hosts run no images.
CPU = [
    "--fleet", FLEET, "--nodes", "2", "--image", "any", "--set", "user=root", "--gpu", "none", "--cpu", "x86:1..",
    "--memory", "1GB..", "--disk", "1GB..", "--data", "addition", "--model", "tiny-qwen2",
]  # fmt: skip


def hosts_of(lab: Lab) -> list[str]:
    names = [word for host in lab.hosts[2:4] for word in ("--ssh-host", host.address)]
    return [*names, "--ssh-user", "root", "--ssh-key", str(lab.fleet_key)]


@pytest.fixture(scope="module")
def lab(dstack_lab: Lab) -> Iterator[Lab]:
    """The lab with a fleet of two hosts, made by `cloudrl fleet create`."""
    done = dstack_lab.run("cloudrl", "fleet", "create", FLEET, *hosts_of(dstack_lab), "-y", timeout_s=180)
    assert done.returncode == 0, done.stdout
    assert "fleet mine: 2 machines ready" in done.stdout
    yield dstack_lab
    gone = dstack_lab.run("cloudrl", "fleet", "delete", FLEET, "-y", timeout_s=180)
    assert gone.returncode == 0, gone.stdout


@pytest.fixture(scope="module")
def typed(lab: Lab) -> Type:
    """Type a command in the lab; its exit code must be the expected one."""

    def run(*words: str, code: int = 0, timeout_s: float = 120.0, cwd: Path | None = None) -> Typed:
        done = lab.run(*words, timeout_s=timeout_s, cwd=cwd)
        assert done.returncode == code, done.stdout
        return done

    return run


def shards(lab: Lab, run: str) -> list[list[str]]:
    """Names of the actor's shards on each host's own disk."""
    pattern = f"{run}/global_step_*/actor/model_world_size_2_rank_*.pt"
    return [[path.name for path in host.path("/checkpoints").glob(pattern)] for host in lab.hosts[2:4]]


def ssh_of(lab: Lab) -> list[str]:
    """Process numbers of the ssh that forward ports in the lab."""
    return lab.run("pgrep", "-f", "^ssh .* -N -L ").stdout.split()


def answers(url: str) -> bool:
    """Whether something answers there, if only that it wants a token."""
    try:
        urllib.request.urlopen(url, timeout=3).close()
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        return False
    return True


class TestFleets:
    def test_listed(self, typed: Type) -> None:
        fleets = json.loads(typed("cloudrl", "fleet", "list", "--json").stdout)
        [mine] = [fleet for fleet in fleets if fleet["name"] == FLEET]
        assert [each["status"] for each in mine["instances"]] == ["idle", "idle"]
        assert mine["is_ssh"] is True

    def test_made_again_without_harm(self, typed: Type, lab: Lab) -> None:
        assert "is there, as declared" in typed("cloudrl", "fleet", "create", FLEET, *hosts_of(lab)).stdout

    def test_not_there(self, typed: Type) -> None:
        done = typed("cloudrl", "fleet", "delete", "mime", "-y", code=2)
        assert "no fleet 'mime'; did you mean 'mine'" in done.stdout

    def test_not_deleted_when_nobody_can_be_asked(self, typed: Type) -> None:
        assert "Say it with -y" in typed("cloudrl", "fleet", "delete", FLEET, code=2).stdout
        assert FLEET in typed("cloudrl", "fleet", "list").stdout

    def test_no_backend_for_it(self, typed: Type) -> None:
        done = typed("cloudrl", "fleet", "create", "cloud", "--gpu", "H100:8", "-y", code=3)
        assert "no backend of project 'main' offers such a machine" in done.stdout

    def test_a_key_that_is_not_there(self, typed: Type) -> None:
        words = ["--ssh-host", "10.0.0.9", "--ssh-user", "me", "--ssh-key", "/nowhere/key"]
        assert (
            "SSH key /nowhere/key: No such file"
            in typed("cloudrl", "fleet", "create", "x1", *words, code=2).stdout
        )


def test_volumes_need_a_backend(typed: Type) -> None:
    words = ["--backend", "aws", "--region", "us-east-1", "--size", "100GB", "-y"]
    assert "dstack:" in typed("cloudrl", "volume", "create", "ckpt", *words, code=2).stdout
    assert "no network volume" in typed("cloudrl", "volume", "list").stdout


def test_a_cluster_that_no_fleet_can_hold(typed: Type) -> None:
    words = [word if word != "1GB.." else "9000GB.." for word in CPU]
    done = typed("cloudrl", "up", "big", "--on", "dstack", *words, "-y", code=3)
    assert "no fleet has or can get such a machine" in done.stdout


@pytest.fixture(scope="module")
def up(lab: Lab, typed: Type) -> Iterator[str]:
    """A READY cluster of the two hosts, started by `cloudrl up --on dstack`."""
    done = typed("cloudrl", "up", "first", "--on", "dstack", *CPU, "-y", timeout_s=400)
    assert "READY: first with 2 nodes" in done.stdout
    yield "first"
    if lab.runs.status("first") not in ("done", "failed", "terminated"):
        lab.runs.stop("first")


class TestUp:
    def test_status(self, typed: Type, up: str) -> None:
        look = json.loads(typed("cloudrl", "status", up, "--json").stdout)
        assert (look["phase"], [node["phase"] for node in look["nodes"]]) == ("ready", ["ready", "ready"])

    def test_a_second_one_of_its_name(self, typed: Type, up: str) -> None:
        done = typed("cloudrl", "up", up, "--on", "dstack", *CPU, "-y", code=2)
        assert f"a run '{up}' is there: running" in done.stdout

    def test_no_secret_stands_in_a_log_or_a_process_list(self, typed: Type, lab: Lab, up: str) -> None:
        found = re.search(r"RAY_AUTH_TOKEN=(\w{64})", typed("cloudrl", "env", "--cluster", up).stdout)
        assert found is not None
        assert found[1] not in lab.runs.log(up, 0) + lab.runs.log(up, 1)
        assert not [
            process
            for host in lab.hosts[2:4]
            for process in host.processes()
            if found[1] in " ".join(process.words)
        ]

    def test_the_tunnel_comes_back_by_itself(self, typed: Type, lab: Lab, up: str) -> None:
        """The keeper notices a dead link, and forwards the same ports again when the cable is back."""
        assert "http://localhost:8265" in typed("cloudrl", "attach", up).stdout
        head = next(host for host in lab.hosts[2:4] if host.address == lab.runs.submissions(up)[0].address)
        keeper_ssh = ssh_of(lab)
        head.cut()
        try:
            until(lambda: ssh_of(lab) != keeper_ssh, 12, lambda: "ssh has not noticed within 10 s and a bit")
        finally:
            head.restore()
        with lab.network():
            until(lambda: answers("http://127.0.0.1:8265/api/version"), 30, lambda: "no tunnel after 30 s")
        assert json.loads(typed("cloudrl", "status", up, "--json").stdout)["phase"] == "ready"

    def test_a_keeper_that_is_killed_blocks_nothing(self, typed: Type, lab: Lab, up: str) -> None:
        path = next(lab.home.glob(f".cloudrl/dstack/*/{up}/tunnel/tunnel.json"))
        before = json.loads(path.read_text())["pid"]
        lab.run("kill", "-KILL", str(before))
        assert "http://localhost:8265" in typed("cloudrl", "attach", up).stdout
        assert json.loads(path.read_text())["pid"] != before
        assert "is closed" in typed("cloudrl", "detach", up).stdout
        assert ssh_of(lab) == []
        assert "there was no tunnel" in typed("cloudrl", "detach", up).stdout

    def test_submit_trains_on_both_hosts(self, typed: Type, lab: Lab, up: str) -> None:
        """Real verl over the hosts' network; each rank's shard lies on its own host's disk."""
        words = ["--steps", "2", "--name", "trained", "--cluster", up]
        done = typed("cloudrl", "submit", "grpo-tiny", *words, timeout_s=500)
        assert "step 2/2" in done.stdout
        here = shards(lab, "trained")
        assert [len(each) for each in here] == [1, 1]
        assert here[0] != here[1]

    def test_down_leaves_nothing_running(self, typed: Type, lab: Lab, up: str) -> None:
        typed("cloudrl", "down", up, "-y")
        assert lab.runs.status(up) == "terminated"
        assert [host.processes(containers_only=True) for host in lab.hosts[2:4]] == [[], []]
        assert f"no run {up!r}" not in typed("cloudrl", "status", up).stdout


def test_a_raw_dstack_apply_and_a_submit_beside_it(typed: Type, lab: Lab, tmp_path: Path) -> None:
    """The file that `cloudrl task create` writes needs nothing but what lies beside it."""
    typed("cloudrl", "task", "create", "raw", *CPU, cwd=tmp_path)
    lab.runs.apply(tmp_path / "raw.dstack.yml")
    try:
        lab.runs.wait_for_line("raw", "READY", timeout_s=300)
        done = typed("cloudrl", "submit", "grpo-tiny", "--steps", "1", "--name", "raw-1", timeout_s=400)
        assert "step 1/1" in done.stdout
        assert [len(each) for each in shards(lab, "raw-1")] == [1, 1]
    finally:
        lab.runs.stop("raw")


def test_a_model_that_does_not_exist_ends_the_run_with_the_reason(typed: Type, lab: Lab) -> None:
    words = [word if word != "tiny-qwen2" else "nobody/nothing" for word in CPU]
    done = typed("cloudrl", "up", "wrong", "--on", "dstack", *words, "-y", code=4, timeout_s=400)
    assert "nobody/nothing" in done.stdout
    assert lab.runs.attempts("wrong") <= 2
