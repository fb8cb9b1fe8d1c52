"""Is this machine good enough?"""

import dataclasses
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cloudrl.node.host_info import GIB, Gpus, HostInfo
from cloudrl.node.preflight import Fault, check_host, different, hidden_gpus, unwritable
from cloudrl.protocol.report import HeartbeatReply, NodeReport, NodeWarning

GOOD = HostInfo(
    gpus=Gpus("nvidia", 8), cpus=96, memory_bytes=2000 * GIB, shm_bytes=128 * GIB, temp_free_fraction=0.5,
    temp_free_bytes=500 * GIB, interface="eth0", open_files=65_536, ray_version="2.60.0", python_version="3.12.1",
    verl_version="0.9.1",
)  # fmt: skip


def _judge(
    declared: int = 8, device: str = "gpu", told: int | None = None, **changes: Any
) -> tuple[list[Fault], list[NodeWarning]]:
    return check_host(dataclasses.replace(GOOD, **changes), device=device, gpus=declared, cpus=told)


LAPTOP: dict[str, Any] = {
    "declared": 1, "device": "cpu", "told": 8, "gpus": Gpus(), "cpus": 2, "memory_bytes": 4 * GIB,
    "shm_bytes": 1 << 20, "interface": None, "open_files": 1024,
}  # fmt: skip


@pytest.mark.parametrize(
    "machine",
    [
        {},
        LAPTOP,
        {**LAPTOP, "gpus": Gpus(problem="a driver that complains where none is wanted")},
        {"gpus": Gpus("nvidia", 8, "a driver that complains, and all are there")},
        {"cpus": 2, "told": 24},
        {"declared": 0, "told": 1},
        {"shm_bytes": None},
        *({"ray_version": version} for version in ("2.52.0", "2.60.0.dev0", "3.0.0", "nightly")),
    ],
)
def test_a_good_machine(machine: dict[str, Any]) -> None:
    assert _judge(**machine) == ([], [])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ray_version": None}, ["no Ray", "pip install 'ray[default]'"]),
        ({"temp_free_fraction": 0.04, "temp_free_bytes": 2 * GIB}, ["96% full", "2.0 GiB free", "5%"]),
        ({"cpus": 23}, ["23 CPUs for 8 GPUs", "24"]),
        ({"told": 23}, ["23 CPUs for 8 GPUs", "24"]),
        ({"gpus": Gpus("nvidia", 7)}, ["7 GPUs found, 8 declared"]),
        ({"gpus": Gpus()}, ["0 GPUs found, 8 declared"]),
        ({"gpus": Gpus("nvidia", 7, "a GPU is lost")}, ["7 GPUs found, 8 declared: a GPU is lost"]),
        ({"shm_bytes": 64 << 20}, ["/dev/shm has 64 MiB", "shm_size"]),
    ],
)
def test_a_fault_says_both_values(changes: dict[str, Any], words: list[str]) -> None:
    [fault], warnings = _judge(**changes)
    assert [word for word in words if word not in fault.text] == []
    assert warnings == []
    assert "\n" not in fault.text


def test_all_faults_are_said_at_once() -> None:
    faults, _ = _judge(ray_version=None, cpus=1, gpus=Gpus(), shm_bytes=0)
    assert {each.subject for each in faults} == {"ray", "cpus", "gpus", "shm"}
    checkpoints = Fault("checkpoints", "it is full", "ENOSPC")
    joined = Fault.joined([*_judge(cpus=23, gpus=Gpus())[0], checkpoints])
    assert (joined.subject, joined.code) == ("cpus, gpus, checkpoints", "none, ENOSPC")
    assert joined.text.endswith("; 0 GPUs found, 8 declared; it is full")


@pytest.mark.parametrize(
    ("gpus", "code"),
    [
        (Gpus(), "none"),
        (Gpus("nvidia", 7), "fewer"),
        (Gpus(problem="it hangs"), "none problem"),
        (Gpus("nvidia", 5, "a GPU is lost"), "fewer problem"),
    ],
)
def test_missing_gpus_have_codes(gpus: Gpus, code: str) -> None:
    [fault], _ = _judge(gpus=gpus)
    assert (fault.subject, fault.code) == ("gpus", code)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"open_files": 1024}, "`ulimit -n` is 1024"),
        ({"memory_bytes": 512 * GIB}, "512 GiB of RAM for 8 GPUs"),
        ({"interface": None}, "GLOO_SOCKET_IFNAME"),
        ({"ray_version": "2.51.1"}, "Ray 2.51.1 has no token authentication: whoever reaches Ray's ports"),
        ({"ray_version": "1.13.0"}, "take an image with Ray 2.52 or later"),
    ],
)
def test_a_warning_ends_nothing(changes: dict[str, Any], word: str) -> None:
    faults, [warning] = _judge(**changes)
    assert faults == []
    assert word in f"{warning}"


def test_a_writable_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "checkpoints"
    assert unwritable(folder) is None
    with ThreadPoolExecutor(8) as threads:  # one process number, as agents in two containers have
        assert not any(threads.map(unwritable, [folder] * 400))
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named_with_the_user(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    fault = unwritable(tmp_path / "file" / "checkpoints")
    assert str(tmp_path / "file" / "checkpoints") in fault.text
    assert f"user {os.getuid()}" in fault.text
    assert "Not a directory" in fault.text
    assert (fault.subject, fault.code) == ("checkpoints", "ENOTDIR")


HEAD = HeartbeatReply(ray_version="2.60.0", python_version="3.12.1")


def own(ray: str | None, python: str) -> NodeReport:
    return NodeReport(1, "10.0.0.2", ray_version=ray, python_version=python)


@pytest.mark.parametrize(
    ("ray", "python", "words"),
    [
        ("2.60.0", "3.12.1", "None"),
        ("2.52.0", "3.12.1", "Ray 2.52.0 here and 2.60.0 on rank 0"),
        (None, "3.12.1", "Ray None here and 2.60.0 on rank 0"),
        ("2.60.0", "3.11.7", "Python 3.11.7 here and 3.12.1 on rank 0"),
    ],
)
def test_different_software_is_said_with_both_versions(ray: str | None, python: str, words: str) -> None:
    assert words in str(different(own(ray, python), HEAD))


@pytest.mark.parametrize(
    ("vendor", "env", "reason"),
    [
        ("nvidia", {}, None),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "0,1"}, None),
        ("nvidia", {"HIP_VISIBLE_DEVICES": ""}, None),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES='' shows 0 GPUs, 2 declared: unset it"),
        (
            "nvidia",
            {"CUDA_VISIBLE_DEVICES": "NoDevFiles"},
            "CUDA_VISIBLE_DEVICES='NoDevFiles' shows 0 GPUs, 2 declared",
        ),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "3"}, "CUDA_VISIBLE_DEVICES='3' shows 1 GPUs, 2 declared"),
        ("amd", {"HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "0,1"}, None),
        ("amd", {"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": ""}, "HIP_VISIBLE_DEVICES='' shows 0 GPUs"),
        ("amd", {"ROCR_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0,1"}, "ROCR_VISIBLE_DEVICES='0' shows 1 GPUs"),
    ],
)
def test_gpus_that_a_variable_hides_from_ray(vendor: str, env: dict[str, str], reason: str | None) -> None:
    fault = hidden_gpus(env, vendor, 2)
    assert (fault is None) == (reason is None)
    assert fault is None or reason is None or reason in fault.text
