"""What a machine says of itself. The machine of the tests is whatever it is."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

import pytest

from cloudrl.node import facts

if TYPE_CHECKING:
    from pathlib import Path


def test_the_interface_of_an_address() -> None:
    assert facts.interface_of("127.0.0.1") == "lo"
    assert facts.interface_of("192.0.2.1") is None


def test_this_machine(tmp_path: Path) -> None:
    seen = facts.gather("127.0.0.1", tmp_path / "not" / "there" / "yet")
    assert 1 <= seen.cpus <= (os.cpu_count() or 1)
    assert seen.memory_bytes > 0
    assert 0 < seen.temp_free_fraction <= 1
    assert seen.python_version == platform.python_version()
    assert seen.interface == "lo"
    assert seen.open_files > 0


def test_gpus_are_counted_by_what_the_driver_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho 'GPU 0: NVIDIA H100 (UUID: GPU-1)'\necho 'GPU 1: NVIDIA H100 (UUID: GPU-2)'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert facts.count_gpus() == ("nvidia", 2)


def test_a_driver_without_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not communicate with the driver' >&2\nexit 9\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert facts.count_gpus() == (None, 0)
