"""What a machine says of itself. The machine of the tests is whatever it is."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

import pytest

from cloudrl.node import host_info

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Be the driver's program: a shell script, or whatever stands in its first line."""

    def write(script: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(script)
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return write


def test_gpus_are_counted_by_what_the_driver_lists(nvidia_smi: Callable[[str], None]) -> None:
    nvidia_smi(
        "#!/bin/sh\necho 'GPU 0: NVIDIA H100 (UUID: GPU-1)'\necho 'GPU 1: NVIDIA H100 (UUID: GPU-2)'\n"
    )
    assert host_info.detect_gpus() == host_info.Gpus("nvidia", 2)


def test_a_driver_without_gpus_is_quoted(nvidia_smi: Callable[[str], None]) -> None:
    nvidia_smi("#!/bin/sh\necho 'NVIDIA-SMI has failed because it\ncould not communicate' >&2\nexit 9\n")
    said = "nvidia-smi ended with status 9: NVIDIA-SMI has failed because it could not communicate"
    assert host_info.detect_gpus() == host_info.Gpus(problem=said)


def test_a_gpu_that_is_lost_is_said_beside_those_that_are_there(nvidia_smi: Callable[[str], None]) -> None:
    nvidia_smi("#!/bin/sh\necho 'GPU 0: NVIDIA H100 (UUID: GPU-1)'\necho 'GPU is lost' >&2\nexit 15\n")
    said = "nvidia-smi ended with status 15: GPU is lost"
    assert host_info.detect_gpus() == host_info.Gpus("nvidia", 1, said)


def test_a_driver_that_hangs(nvidia_smi: Callable[[str], None]) -> None:
    nvidia_smi("#!/bin/sh\nexec sleep 600\n")
    gpus = host_info.detect_gpus(timeout_s=0.2)
    assert gpus == host_info.Gpus(problem="nvidia-smi does not answer within 0.2 s")


def test_a_program_that_cannot_run(nvidia_smi: Callable[[str], None]) -> None:
    nvidia_smi("#!/no/such/shell\n")
    said = "nvidia-smi cannot be started: No such file or directory"
    assert host_info.detect_gpus() == host_info.Gpus(problem=said)
