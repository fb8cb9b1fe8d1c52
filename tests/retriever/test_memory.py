"""What does not fit is refused with both numbers, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudrl.errors import InputError
from cloudrl.retriever.memory import Memory, check_gpu, check_host, gpu_memory, host_memory

GB = 10**9


def machine(root: Path, **cgroup: str) -> Path:
    (root / "proc").mkdir()
    (root / "proc/meminfo").write_text(
        "MemTotal:       65536000 kB\nMemFree:  1000 kB\nMemAvailable:   32768000 kB\nHugePages_Total:       0\n"
    )
    (root / "sys/fs/cgroup").mkdir(parents=True)
    for name, text in cgroup.items():
        (root / "sys/fs/cgroup" / name.replace("_", ".")).write_text(text)
    return root


def test_a_machine(tmp_path: Path) -> None:
    assert host_memory(machine(tmp_path)) == Memory("this machine", 65536000 * 1024, 32768000 * 1024)


def test_a_container_without_a_limit(tmp_path: Path) -> None:
    assert host_memory(machine(tmp_path, memory_max="max\n")).where == "this machine"


def test_a_container_with_a_limit(tmp_path: Path) -> None:
    stat = "anon 700\ninactive_file 300\nactive_file 200\n"
    found = host_memory(machine(tmp_path, memory_max="4000\n", memory_current="1500\n", memory_stat=stat))
    assert found == Memory("this container or job", 4000, 3000)


def write_group(group: Path, prefix: str = "", **files: int) -> None:
    group.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (group / f"memory.{name}").write_text(f"{value}\n")
    (group / "memory.stat").write_text(f"{prefix}inactive_file 100\n{prefix}active_file 0\n")


def test_the_smallest_limit_on_the_way_up(tmp_path: Path) -> None:
    root = machine(tmp_path)
    (root / "proc/self").mkdir()
    (root / "proc/self/cgroup").write_text("0::/slurm/job_7/step_0\n")
    groups = root / "sys/fs/cgroup/slurm"
    write_group(groups / "job_7", max=4000, current=1500)
    write_group(groups, max=9000, current=8000)
    assert host_memory(root) == Memory("this container or job", 4000, 1100)


def test_limits_of_cgroup_v1(tmp_path: Path) -> None:
    root = machine(tmp_path)
    (root / "proc/self").mkdir()
    (root / "proc/self/cgroup").write_text("9:cpu,cpuacct:/elsewhere\n4:memory:/slurm/job_7\n0::/\n")
    groups = root / "sys/fs/cgroup/memory"
    write_group(groups / "slurm/job_7", "total_", limit_in_bytes=4000, usage_in_bytes=1500)
    write_group(groups, "total_", limit_in_bytes=9223372036854771712, usage_in_bytes=8000)
    assert host_memory(root) == Memory("this container or job", 4000, 2600)


def test_the_machine_at_hand() -> None:
    found = host_memory()
    assert 0 < found.free <= found.total


def test_an_index_larger_than_the_memory() -> None:
    memory = Memory("this machine", 32 * GB, 30 * GB)
    assert check_host(memory, 20 * GB, hint="") == "the index takes 21.1 GB of memory; this machine has 30.0 GB free"
    with pytest.raises(
        InputError, match=r"takes 65.7 GB of memory; this machine has 30.0 GB free of 32.0 GB"
    ) as raised:
        check_host(memory, 64_600_000_000, hint="less")
    assert raised.value.hint == "less"
    assert check_host(memory, 64_600_000_000, hint="", from_disk=True)


def test_an_index_on_a_gpu() -> None:
    memory = Memory("cuda:0", 80 * GB, 79 * GB)
    assert check_gpu(memory, 32_300_000_000).endswith(
        "56% of it is left to others (for verl: actor_rollout_ref.rollout.gpu_memory_utilization)"
    )
    with pytest.raises(InputError, match=r"takes 82.2 GB on cuda:0, which has 79.0 GB free of 80.0 GB") as raised:
        check_gpu(memory, 79 * GB)
    assert "--precision float16" in str(raised.value.hint)


@pytest.mark.io
def test_a_gpu_that_is_not_there() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(InputError, match="the device cuda:0 cannot be used") as raised:
        gpu_memory("cuda:0")
    assert raised.value.hint == "--device cpu"
