"""What a machine says of itself. The machine of the tests is whatever it is."""

import os
import platform
from dataclasses import replace
from pathlib import Path

import pytest

from cloudrl.node import host_info
from cloudrl.node.host_info import Gpus
from cloudrl.protocol.report import NodeReport


def test_the_interface_of_an_address() -> None:
    assert host_info.interface_of("127.0.0.1") == "lo"
    assert host_info.interface_of("192.0.2.1") is None


def test_this_machine(tmp_path: Path) -> None:
    seen = host_info.probe_host("127.0.0.1", tmp_path / "not" / "there" / "yet")
    assert 1 <= seen.cpus <= (os.cpu_count() or 1)
    assert seen.memory_bytes > 0
    assert 0 < seen.temp_free_fraction <= 1
    assert seen.python_version == platform.python_version()
    assert seen.interface == "lo"
    assert seen.open_files > 0
    told = replace(NodeReport(0, "127.0.0.1"), **seen.reported)
    assert (told.cpus, told.python_version, told.rollouts) == (
        seen.cpus, seen.python_version, tuple(seen.rollout_versions),
    )  # fmt: skip


def test_a_job_of_slurm_has_what_slurm_says_and_no_other_program_is_asked(tmp_path: Path) -> None:
    """A site may limit neither by control groups; what another provider's agent inherits is of another job."""
    given = {"SLURM_CPUS_ON_NODE": "1", "SLURM_MEM_PER_NODE": "64"}
    job = {**given, "CLOUDRL_PROVIDER": "slurm"}
    assert (host_info.cpus(job, tmp_path), host_info.memory_bytes(job, tmp_path)) == (1, 64 << 20)
    whole = (len(os.sched_getaffinity(0)), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for env in (given, {**job, "SLURM_CPUS_ON_NODE": "72(x2)", "SLURM_MEM_PER_NODE": "0"}):
        assert (host_info.cpus(env, tmp_path), host_info.memory_bytes(env, tmp_path)) == whole


def test_memory_and_cpus_are_those_of_the_control_group(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    for name, text in (("cpu.max", "150000 100000"), ("memory.max", "4096"), ("memory.current", "5")):
        (group / name).write_text(text)
    (group / "memory.stat").write_text("inactive_file 1\nactive_file 1\n")
    assert (host_info.cpus({}, tmp_path), host_info.memory_bytes({}, tmp_path)) == (1, 4096)


H100 = "echo 'GPU 0: NVIDIA H100 (UUID: GPU-1)'"


@pytest.mark.parametrize(
    ("script", "gpus"),
    [
        (f"#!/bin/sh\n{H100}\n{H100}", Gpus("nvidia", 2)),
        (
            "#!/bin/sh\necho 'NVIDIA-SMI has failed because it\ncould not communicate' >&2\nexit 9",
            Gpus(problem="nvidia-smi ended with status 9: NVIDIA-SMI has failed because it could not communicate"),
        ),
        (
            f"#!/bin/sh\n{H100}\necho 'GPU is lost' >&2\nexit 15",
            Gpus("nvidia", 1, "nvidia-smi ended with status 15: GPU is lost"),
        ),
        ("#!/bin/sh\nexit 3", Gpus(problem="nvidia-smi ended with status 3: no output")),
        ("#!/bin/sh\nexec sleep 600", Gpus(problem="nvidia-smi does not answer within 0.2 s")),
        ("#!/no/such/shell", Gpus(problem="nvidia-smi cannot be started: No such file or directory")),
    ],
    ids=["lists", "fails", "lost", "silent", "hangs", "no program"],
)
def test_gpus_are_what_the_driver_lists_and_its_complaint_is_quoted(
    script: str, gpus: Gpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert host_info.detect_gpus(timeout_s=0.2 if "sleep" in script else 10.0) == gpus
