"""What the node agent says of a real GPU machine, against what torch says of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cloudrl.errors import CapacityError
from cloudrl.node.gpu_tools import ToolWatch
from cloudrl.node.host_info import HostInfo, detect_gpus, probe_host
from cloudrl.node.identity import address_towards
from cloudrl.node.preflight import check_host, hidden_gpus
from cloudrl.protocol.options import AgentOptions
from cloudrl.providers.local.plan import make_plan
from cloudrl.render.agent import build_agent
from cloudrl.spec import Cluster

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> HostInfo:
    return probe_host(address_towards("192.0.2.1"), tmp_path_factory.mktemp("ray"))


def faults(host: HostInfo, gpus: int) -> list[str]:
    return [fault.text for fault in check_host(host, device="gpu", gpus=gpus, cpus=None)[0] if fault.subject == "gpus"]


def test_the_driver_lists_the_gpus_that_torch_sees(host: HostInfo) -> None:
    import torch

    assert (host.gpus.vendor, host.gpus.problem) == ("nvidia", None)
    assert host.gpus.count == torch.cuda.device_count()


def test_the_cards_are_named_and_sized_as_by_torch() -> None:
    import torch

    watch = ToolWatch(lambda: True)
    watch.look()
    assert [gpu.index for gpu in watch.gpus] == [*range(torch.cuda.device_count())]
    for gpu in watch.gpus:
        known = torch.cuda.get_device_properties(gpu.index)
        assert gpu.name == known.name
        assert gpu.memory_total_mib == pytest.approx(known.total_memory / 2**20, rel=0.03)  # less what the driver keeps
        assert 0 <= gpu.memory_used_mib <= gpu.memory_total_mib
        assert 0 <= gpu.utilization_percent <= 100
        assert gpu.power_w is None or 10 < gpu.power_w < 3000
        assert gpu.temperature_c is None or 10 < gpu.temperature_c < 110


def test_preflight_takes_what_is_there_and_refuses_one_more(host: HostInfo) -> None:
    count = host.gpus.count
    assert faults(host, count) == []
    assert faults(host, count + 1) == [f"{count} GPUs found, {count + 1} declared"]
    assert faults(replace(host, cpus=1000), 100 * count) == [f"{count} GPUs found, {100 * count} declared"]


def test_a_variable_that_hides_the_gpus_is_named(host: HostInfo) -> None:
    found = hidden_gpus({"CUDA_VISIBLE_DEVICES": ""}, host.gpus.vendor, host.gpus.count)
    assert found is not None
    assert found.text.startswith("CUDA_VISIBLE_DEVICES='' shows 0 GPUs")
    assert hidden_gpus({"CUDA_VISIBLE_DEVICES": "0"}, host.gpus.vendor, 1) is None


def test_a_program_that_hangs_is_told_from_a_driver_that_answers() -> None:
    assert detect_gpus(timeout_s=1e-4).problem == "nvidia-smi does not answer within 0.0001 s"


def name_of_the_card() -> str:
    import torch

    words = torch.cuda.get_device_name(0).replace("-", " ").split()
    return next(word for word in words if any(map(str.isdigit, word)))


@pytest.mark.parametrize("memory", ["", ":{}GB", ":{}GB.."])
def test_a_cluster_of_the_card_can_be_planned_here(memory: str, home: Path) -> None:
    import torch

    nominal = {79: 80, 140: 141}.get(size := torch.cuda.get_device_properties(0).total_memory >> 30, size)
    plan = make_plan(Cluster(name="one", gpu=f"{name_of_the_card()}{memory.format(nominal)}:1"))
    assert AgentOptions.from_argv(plan.commands[0][3:]).gpus == 1


@pytest.mark.parametrize(
    ("wanted", "part"),
    [
        ("{name}:99", "need 99 GPUs; this machine has {count}"),
        ("MI300X:1", "this machine has {count} x NVIDIA"),
        ("K80:1", "this machine has {count} x NVIDIA"),
        ("9000GB:1", "this machine has {count} x NVIDIA"),
    ],
)
def test_other_gpus_are_refused_with_what_is_there(wanted: str, part: str, home: Path) -> None:
    with pytest.raises(CapacityError) as caught:
        make_plan(Cluster(name="other", gpu=wanted.format(name=name_of_the_card())))
    assert part.format(count=detect_gpus().count) in caught.value.message


def test_the_agents_import_check_passes(tmp_path: Path) -> None:
    """numpy and torch in one process, as before a job: a clash of their libraries would show."""
    agent, result = tmp_path / "agent.pyz", tmp_path / "imports.json"
    agent.write_bytes(build_agent())
    command = [sys.executable, str(agent), "imports", "numpy", "torch", f"--result={result}"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=os.environ | {"HOME": str(tmp_path)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(result.read_text()).get("reason", "") == ""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOUDRL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"
