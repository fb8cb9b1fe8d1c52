"""Limits of control groups on made-up machines: containers, pods, and jobs of Slurm."""

from pathlib import Path

import pytest

from cloudrl.control_groups import MemoryLimit, cpu_quota, memory_limits


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"sys/fs/cgroup/cpu.max": "800000 100000"}, 8.0),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, None),
        (
            {
                "proc/self/cgroup": "0::/kubepods/pod7/c1",
                "sys/fs/cgroup/kubepods/pod7/c1/cpu.max": "max 100000",
                "sys/fs/cgroup/kubepods/pod7/cpu.max": "250000 100000",
                "sys/fs/cgroup/kubepods/cpu.max": "6400000 100000",
            },
            2.5,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/c1\n3:memory:/docker/c1",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            4.0,
        ),
        ({"sys/fs/cgroup/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu.cfs_period_us": "100000"}, None),
        ({"sys/fs/cgroup/cpu.max": "nonsense"}, None),
        ({"proc/self/cgroup": "nonsense"}, None),
    ],
    ids=["container", "no quota", "pod", "version 1", "version 1 without", "odd", "no groups"],
)
def test_cpus_are_those_of_the_tightest_group(files: dict[str, str], cpus: float | None, tmp_path: Path) -> None:
    assert cpu_quota(write(tmp_path, files)) == cpus


def test_a_job_of_slurm_has_its_limit_in_the_tree_of_the_machine(tmp_path: Path) -> None:
    job = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"
    stat = "inactive_file 200\nactive_file 100"
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0",
            f"{job}/step_0/memory.max": "max",
            f"{job}/memory.max": "4000",
            f"{job}/memory.current": "1500",
            f"{job}/memory.stat": stat,
        },
    )
    assert memory_limits(root) == [MemoryLimit(limit=4000, used=1200)]
