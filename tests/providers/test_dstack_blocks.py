"""Two clusters of one node, each on a part of the same host: on bridge networking, with two of its eight GPUs each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from dstack_hosts.runs import ENDED, until

if TYPE_CHECKING:
    from dstack_hosts.user import User

pytestmark = [pytest.mark.dstack, pytest.mark.ray]

NAMES = ("left", "right")
SHARED = 5  # the number of the host
CPUS = "import os\nos.sched_getaffinity = lambda pid: set(range(6))\n"  # as many as two GPUs need
POLICY = "dstack.utilization_policy={min_gpu_utilization: 10, time_window: 5m}"  # 15 s on the lab's server
PROBE = (
    "import pathlib, ray; ray.init(log_to_driver=False); print('nodes', len(ray.nodes()), "
    "'gpus', int(ray.cluster_resources()['GPU']), sorted(map(str, pathlib.Path('/dev').glob('nvidia[0-9]'))))"
)


@pytest.fixture(scope="module")
def both(user: User) -> Iterator[dict[str, str]]:
    """What `cloudrl up` has said of each of the two, which came up side by side."""
    user.lab.create_fleet("shared", (SHARED,), blocks=4)
    host = user.lab.hosts[SHARED]
    for number in range(8):
        host.path(f"/dev/nvidia{number}").write_text("40000, 97\n")
    site = host.path("/var/lib/cloudrl/checkpoints/site")
    site.mkdir(parents=True)
    (site / "sitecustomize.py").write_text(CPUS)

    def up(name: str) -> str:
        words = (
            "--gpu",
            "H100:2",
            "--env",
            "PYTHONPATH=/checkpoints/site",
            "--env",
            "CLOUDRL_GPU_CHECK=off",
            "--set",
            POLICY,
        )
        return user.up(name, "shared", *words, nodes=1)

    with ThreadPoolExecutor(2) as threads:
        outputs = dict(zip(NAMES, threads.map(up, NAMES), strict=True))
    yield outputs
    for name in NAMES:
        if user.lab.runs.status(name) not in ENDED:
            user.types("cloudrl", "down", name, "-y")
    assert user.lab.run("dstack", "fleet", "delete", "-y", "shared").returncode == 0


def gpus(user: User, name: str) -> list[str]:
    """The devices that a cluster's jobs see."""
    log = user.types("cloudrl", "jobs", "logs", "-f", f"probe-{name}", "--cluster", name).stdout
    assert "nodes 1 gpus 2 " in log
    return re.findall(r"/dev/nvidia\d", log)


def test_each_has_its_own(user: User, both: dict[str, str]) -> None:
    for name in NAMES:
        assert f"READY: {name} with 1 node" in both[name]
        user.submits(user.recipe("probe", PROBE), name, f"probe-{name}")
    seen = {name: gpus(user, name) for name in NAMES}
    assert len({device for devices in seen.values() for device in devices}) == 4
    for name in NAMES:
        assert user.jobs(name) == [f"probe-{name}"]
        look = user.status(name)
        assert (look["phase"], len(look["nodes"])) == ("ready", 1)
        assert look["nodes"][0]["ip"].startswith("172.17.")  # not the host's


def test_idle_gpus_end_one_of_them_and_it_is_said_why(user: User, both: dict[str, str]) -> None:
    """One of its two GPUs is enough."""
    del both
    host = user.lab.hosts[SHARED]
    [idle, _] = gpus(user, "right")
    host.path(idle).write_text("1024, 3\n")
    until(lambda: user.lab.runs.status("right") in ENDED, 90, lambda: user.lab.runs.status("right"))
    look = user.status("right")
    assert (look["phase"], user.lab.runs.attempts("right")) == ("failed", 1)
    assert "rank 0: one of its GPUs did less than its utilization_policy asks for" in look["reason"]
    assert "below 10% for" in look["reason"]
    # dstack's shim has taken the user's key off the host with the run that ended: what is there goes on, unreached
    left = user.status("left")
    assert (left["phase"], left["nodes"][0]["phase"]) == ("running", "running")
    assert "Permission denied" in left["nodes"][0]["detail"]
