"""The vendor's tools: what they print, and what becomes of one that hangs."""

import json
import time
from pathlib import Path

import pytest
from fake_clock import Clock
from patience import SLOWER

from cloudrl.node.gpu_tools import ToolWatch, parse_amd_smi, parse_nvidia_smi, parse_rocm_smi
from cloudrl.protocol.report import GpuUsage

# nvidia-smi 550.54 on an H100; the second is a GPU with MIG, whose use the driver does not tell
NVIDIA = """\
0, NVIDIA H100 80GB HBM3, 97, 61234, 81559, 612.34, 63
1, NVIDIA A100-SXM4-40GB, [N/A], 5, 40960, [Not Supported], 31
"""
# AMD-SMI 26.2.1 on an MI355X, shortened: `amd-smi metric --json`
AMD = {
    "gpu_data": [
        {
            "gpu": 0,
            "usage": {"gfx_activity": {"value": 98, "unit": "%"}, "vcn_activity": [{"value": 0, "unit": "%"}, "N/A"]},
            "power": {"socket_power": {"value": 239, "unit": "W"}, "gfx_voltage": "N/A"},
            "temperature": {"edge": "N/A", "hotspot": {"value": 36, "unit": "C"}, "mem": {"value": 30, "unit": "C"}},
            "mem_usage": {
                "total_vram": {"value": 294896, "unit": "MB"}, "used_vram": {"value": 283, "unit": "MB"},
            },
        },
        {"gpu": 1, "usage": "N/A", "power": "N/A", "temperature": {"edge": "N/A"}, "mem_usage": "N/A"},
    ]
}  # fmt: skip
# ROCm 5 and 6: the names of power and card differ
ROCM = {
    "card10": {"GPU use (%)": "3", "Card Series": "Instinct MI300X"},
    "card0": {
        "GPU use (%)": "68", "VRAM Total Memory (B)": "68719476736", "VRAM Total Used Memory (B)": "28823961600",
        "Temperature (Sensor edge) (C)": "72.0", "Temperature (Sensor junction) (C)": "78.0",
        "Average Graphics Package Power (W)": "235.5", "Card series": "Instinct MI250X", "Unique ID": "0x1234",
    },
    "card1": {"GPU use (%)": "3", "Current Socket Graphics Package Power (W)": "95.2"},
    "system": {"Driver version": "6.7.0"},
}  # fmt: skip


def test_nvidia_smi() -> None:
    assert parse_nvidia_smi(NVIDIA) == (
        GpuUsage(0, "NVIDIA H100 80GB HBM3", 97.0, 61_234, 81_559, 612.34, 63.0),
        GpuUsage(1, "NVIDIA A100-SXM4-40GB", None, 5, 40_960, None, 31.0),
    )


@pytest.mark.parametrize("is_list", [False, True], ids=["ROCm 7", "ROCm 6"])
def test_amd_smi(is_list: bool) -> None:
    assert parse_amd_smi(json.dumps(AMD["gpu_data"] if is_list else AMD)) == (
        GpuUsage(0, "", 98.0, 283, 294_896, 239.0, 36.0),
        GpuUsage(1),
    )


def test_rocm_smi() -> None:
    assert parse_rocm_smi(json.dumps(ROCM)) == (
        GpuUsage(0, "Instinct MI250X", 68.0, 27_488, 65_536, 235.5, 78.0),
        GpuUsage(1, "", 3.0, power_w=95.2),
        GpuUsage(10, "Instinct MI300X", 3.0),
    )


class Tools:
    """Programs in a folder, and whoever asks them."""

    def __init__(self, folder: Path, answer_s: float = 20.0) -> None:
        self.folder, self.clock, self.is_needed = folder, Clock(), True
        self.watch = ToolWatch(lambda: self.is_needed, find=self._find, answer_s=answer_s, clock=self.clock)

    def add(self, name: str, script: str) -> Path:
        started = self.folder / f"{name}.started"
        program = self.folder / name
        program.write_text(f"#!/bin/sh\necho $$ >> {started}\n{script}\n")
        program.chmod(0o755)
        return started

    def look(self) -> tuple[GpuUsage, ...]:
        self.watch.look()
        return self.watch.gpus

    def _find(self, name: str) -> str | None:
        program = self.folder / name
        return str(program) if program.exists() else None


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    return Tools(tmp_path)


def test_without_a_tool(tools: Tools) -> None:
    assert tools.look() == ()


@pytest.mark.io
def test_the_first_that_answers(tools: Tools) -> None:
    tools.add("nvidia-smi", "echo 'NVIDIA-SMI has failed because it could not talk to the driver.'; exit 9")
    tools.add("amd-smi", "echo usage: amd-smi; exit 2")
    tools.add("rocm-smi", f"cat <<'END'\n{json.dumps(ROCM)}\nEND")
    assert [gpu.index for gpu in tools.look()] == [0, 1, 10]


@pytest.mark.io
def test_what_it_has_said_grows_old(tools: Tools) -> None:
    tools.add("nvidia-smi", f"cat <<'END'\n{NVIDIA}END")
    assert len(tools.look()) == 2
    tools.clock.sleep(40)
    assert tools.watch.gpus == ()


@pytest.mark.io
def test_while_ray_says_it_no_tool_is_started(tools: Tools) -> None:
    started = tools.add("nvidia-smi", f"cat <<'END'\n{NVIDIA}END")
    assert len(tools.look()) == 2
    tools.is_needed = False
    assert tools.look() == ()
    assert len(started.read_text().split()) == 1


@pytest.mark.io
def test_one_that_hangs_is_ended_and_holds_up_nothing(tmp_path: Path) -> None:
    tools = Tools(tmp_path, answer_s=0.2)
    started = tools.add("nvidia-smi", "exec sleep 600")
    other = tools.add("amd-smi", f"cat <<'END'\n{json.dumps(AMD)}\nEND")
    began = time.monotonic()
    tools.look()
    assert time.monotonic() - began < 20
    assert len(started.read_text().split()) == 1
    deadline = time.monotonic() + 20 * SLOWER
    while len(tools.look()) != 2:  # the kernel may take a moment to end it, and until then nothing is started
        assert time.monotonic() < deadline
    assert len(other.read_text().split()) >= 1
