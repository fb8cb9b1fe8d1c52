"""Nothing of a cluster stays, also when its starter is killed in the middle of a job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from child_processes import ended
from dstack_hosts import cgroups, namespaces
from dstack_hosts.runs import until

from slurm_nodes import SlurmNodes
from slurm_nodes.containers import IMAGE
from slurm_nodes.requirements import why_not

pytestmark = [pytest.mark.slurm, pytest.mark.root]

SLEEPS = ("sleep 603", "sleep 604", "sleep 605")
STARTER = f"""
import signal, sys
from pathlib import Path
from slurm_nodes import SlurmNodes
cluster = SlurmNodes(1, Path(sys.argv[1]), containers=True)
cluster.start()
job = cluster.jobs.sbatch("docker run --detach {IMAGE} {SLEEPS[0]}; setsid --fork {SLEEPS[1]}; echo on; {SLEEPS[2]}")
cluster.jobs.wait_for(job, "on")
print(cluster.login.pid, cluster.nodes[0].pid, flush=True)
signal.pause()
"""


@pytest.fixture
def folder():
    reason = why_not()
    if reason:
        pytest.skip(reason)
    return Path(tempfile.mkdtemp(prefix="slurm-left-", dir="/tmp"))


def _groups(folder):
    return list(Path("/sys/fs/cgroup").glob(f"*/{cgroups.name_for(folder)}"))


def _mentions(folder):
    words = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in words.splitlines() if str(folder) in line or line in SLEEPS]


def test_a_starter_that_is_killed_leaves_nothing(folder):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    words = [sys.executable, "-c", STARTER, str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment) as starter, ended(starter):
        networks = [namespaces.network_id(pid) for pid in starter.stdout.readline().decode().split()]
        assert all(map(namespaces.members, networks))
        assert len(networks) == 2
        until(lambda: set(SLEEPS) < set(_mentions(folder)), 5, lambda: str(_mentions(folder)))
        assert str(folder) not in Path("/proc/self/mounts").read_text()
        starter.send_signal(signal.SIGKILL)
    remaining = lambda: [*_mentions(folder), *_groups(folder), *filter(namespaces.members, networks)]  # noqa: E731
    until(lambda: not folder.exists() and not remaining(), 20, lambda: str(remaining()))


def test_a_cluster_is_up_and_gone_in_no_time(folder):
    cluster = SlurmNodes(2, folder)
    start = time.monotonic()
    cluster.start()
    up = time.monotonic()
    assert _groups(folder) or not cluster.site.cgroups
    cluster.stop()
    down = time.monotonic()
    assert not folder.exists()
    assert not _groups(folder)
    assert (up - start, down - up) < (10, 5)  # 1.0 s and 0.2 s where nothing else runs
