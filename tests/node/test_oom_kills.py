"""The kernel's counters of kills for lack of memory, on made-up machines and on this one."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cloudrl.node.oom_kills import OomWatch
from cloudrl.protocol.oom_kills import OomKills, from_line

EVENTS = "low 0\nhigh 0\nmax 7\noom 2\noom_kill {}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
VMSTAT = "nr_free_pages 1000\noom_kill {}\n"


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


@pytest.mark.parametrize(
    ("cgroup", "counter", "text"),
    [
        ("0::/slurm/job_1\n", "sys/fs/cgroup/slurm/job_1/memory.events", EVENTS),
        ("0::/\n", "sys/fs/cgroup/memory.events", EVENTS),
        ("9:cpu,memory:/docker/1\n", "sys/fs/cgroup/memory/docker/1/memory.oom_control", CONTROL),
        ("9:cpu,memory:/docker/1\n0::/\n", "sys/fs/cgroup/memory/memory.oom_control", CONTROL),
        ("0::/kubepods/pod1/c1\n", "sys/fs/cgroup/kubepods/pod1/c1/memory.events", EVENTS),
        (
            "0::/user.slice/user-0.slice/session-1.scope\n",
            "sys/fs/cgroup/user.slice/user-0.slice/memory.events",
            EVENTS,
        ),
        ("4:memory:/user.slice\n0::/user.slice\n", "sys/fs/cgroup/memory/user.slice/memory.oom_control", CONTROL),
        ("3:cpu:/\n0::/user.slice\n", "sys/fs/cgroup/unified/user.slice/memory.events", EVENTS),
        ("0::/\n", "proc/vmstat", VMSTAT),
    ],
)
def test_kills_since_the_start(tmp_path: Path, cgroup: str, counter: str, text: str):
    write(tmp_path, "proc/self/cgroup", cgroup)
    write(tmp_path, "proc/vmstat", VMSTAT.format(90))
    if cgroup.count(":") > 2:  # both versions, as systemd mounts them
        write(tmp_path, "sys/fs/cgroup/unified/cgroup.controllers", "")
    write(tmp_path, counter, text.format(3))
    watch = OomWatch(tmp_path, now=lambda: 1000.0)
    assert watch.look() is None, "those before it are of others"
    write(tmp_path, counter, text.format(5))
    assert watch.look() == OomKills(2, 1000.0)
    assert watch.look() is None, "told once"


def test_a_machine_without_counters(tmp_path: Path):
    assert OomWatch(tmp_path).look() is None


def test_this_machine():
    assert OomWatch().look() is None


GROUPS = (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max"))
"""Of cgroups 1 and 2: where a group of processes is made, and the file of its limit."""
ENDED_BY_THE_KERNEL = """
import json, os, subprocess, sys
from pathlib import Path
from cloudrl.node.oom_kills import OomWatch

Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
watch = OomWatch()
child = "x = bytearray(400 << 20)\\nfor at in range(0, len(x), 4096): x[at] = 1"
code = subprocess.run([sys.executable, "-c", child]).returncode
print(json.dumps([code, watch.look().count]))
"""


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A group of processes that may have 150 MB."""
    for parent, limit in GROUPS:
        group = Path(parent, f"cloudrl-test-{os.getpid()}")
        if not Path(parent, "cgroup.procs").exists() or not os.access(parent, os.W_OK):
            continue
        with suppress(OSError):
            group.mkdir()
            try:
                if (group / limit).exists():
                    (group / limit).write_text(str(150 << 20))
                    yield group
                    return
            finally:
                group.rmdir()
    pytest.skip("no group of processes with a limit of memory can be made here")


@pytest.mark.root
def test_a_kill_by_this_kernel(small_group: Path):
    done = subprocess.run(
        [sys.executable, "-c", ENDED_BY_THE_KERNEL, str(small_group)], capture_output=True, text=True, timeout=120
    )
    assert (json.loads(done.stdout), done.stderr) == ([-9, 1], "")


def test_the_line_of_the_log():
    kills = OomKills(2, 1764147600.0)
    assert from_line(f"[10:00:00 rank 1] {kills.to_line()}") == kills
    assert from_line("[10:00:00 rank 1] phase: ready") is None
