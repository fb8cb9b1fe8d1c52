"""The variables that Ray and all jobs inherit."""

import dataclasses
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cloudrl.node.environment import node_environment, with_own_python
from cloudrl.node.host_info import GIB, Gpus, HostInfo

FACTS = HostInfo(
    gpus=Gpus("nvidia", 8), cpus=96, memory_bytes=2000 * GIB, shm_bytes=128 * GIB, temp_free_fraction=0.5,
    temp_free_bytes=500 * GIB, interface="eth0", open_files=65_536, ray_version="2.60.0", python_version="3.12.1",
    verl_version="0.9.1",
)  # fmt: skip

TOKEN = Path("/run/ray-token")


def _env(host: HostInfo = FACTS, **base: str) -> dict[str, str]:
    return node_environment({"PATH": "/usr/bin", **base}, host, token_path=TOKEN, temp_dir=None)


def test_authentication_is_always_explicit() -> None:
    others = {"RAY_AUTH_TOKEN": "another's", "RAY_AUTH_TOKEN_PATH": "/another", "RAY_ADDRESS": "x:1"}
    env = _env(RAY_AUTH_MODE="disabled", **others)
    assert (env["RAY_AUTH_MODE"], env["RAY_AUTH_TOKEN_PATH"]) == ("token", "/run/ray-token")
    assert "RAY_AUTH_TOKEN" not in env
    assert "RAY_ADDRESS" not in env


def test_what_it_adds() -> None:
    env = _env()
    assert env["NUMEXPR_MAX_THREADS"] == "96"
    assert env["GLOO_SOCKET_IFNAME"] == env["NCCL_SOCKET_IFNAME"] == "eth0"
    assert env["RAY_USAGE_STATS_ENABLED"] == "0"


def test_compiled_kernels_are_kept_where_models_are() -> None:
    def caches(home: str, device: str = "gpu", **base: str) -> dict[str, str]:
        env = node_environment(
            {"HF_HOME": home, **base}, FACTS, token_path=TOKEN, temp_dir=None, device=device, checkpoints=Path("/c")
        )
        return {name: value for name, value in env.items() if name.endswith(("CACHE_DIR", "CACHE_ROOT"))}

    own = f"/c/.cloudrl/compiled/{socket.gethostname()}"
    assert caches("/c/.cloudrl/huggingface") == {
        "VLLM_CACHE_ROOT": f"{own}/vllm",
        "TORCHINDUCTOR_CACHE_DIR": f"{own}/inductor",
        "TRITON_CACHE_DIR": f"{own}/triton",
    }
    assert caches("/c/.cloudrl/huggingface", VLLM_CACHE_ROOT="/mine")["VLLM_CACHE_ROOT"] == "/mine"
    assert caches("/home/me/.cache/huggingface") == {}, "a home that stays has its own caches"
    assert caches("/c/.cloudrl/huggingface", device="cpu") == {}


def test_rays_metrics_are_served_only_where_somebody_asks_for_them() -> None:
    assert _env()["RAY_enable_metrics_collection"] == "0"
    env = _env(RAY_enable_metrics_collection="1", DASHBOARD_METRIC_PORT="44227")
    assert env["RAY_enable_metrics_collection"] == "1"
    assert (env["DASHBOARD_METRIC_PORT"], env["AUTOSCALER_METRIC_PORT"]) == ("44227", "-1")


def test_rays_own_debuggers_are_off_unless_somebody_asks_for_them() -> None:
    assert _env()["RAY_DEBUG"] == "0"
    assert _env(RAY_DEBUG="1")["RAY_DEBUG"] == "1"


@pytest.mark.io
def test_breakpoints_are_passed_over_before_ray_is_connected() -> None:
    assert _env(PYTHONBREAKPOINT="mine.stop")["PYTHONBREAKPOINT"] == "mine.stop"
    command = [sys.executable, "-c", "breakpoint(); print('went on')"]
    said = subprocess.run(command, env=_env(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert (said.returncode, said.stdout) == (0, "went on\n"), said.stderr


def test_python3_is_this_python() -> None:
    own = str(Path(sys.executable).parent)
    assert with_own_python({"PATH": "/usr/bin", "A": "b"}) == {"PATH": os.pathsep.join([own, "/usr/bin"]), "A": "b"}
    assert with_own_python({})["PATH"] == os.pathsep.join([own, os.defpath])


def test_temporary_files_of_jobs_go_where_rays_go() -> None:
    base = {"TMPDIR": "/mine"}
    assert node_environment(base, FACTS, token_path=TOKEN, temp_dir=Path("/x/tmp"))["TMPDIR"] == "/x/tmp"


@pytest.mark.parametrize("value", ["", "0,1", "NoDevFiles"])
def test_without_gpus_nothing_hides_what_stands_in_for_one(value: str) -> None:
    """Ray refuses to start with `--num-gpus=1` where CUDA_VISIBLE_DEVICES is empty."""
    base = {"CUDA_VISIBLE_DEVICES": value, "HIP_VISIBLE_DEVICES": value, "KEPT": "1"}
    env = node_environment(base, FACTS, token_path=TOKEN, temp_dir=None, device="cpu")
    assert not any("VISIBLE" in name for name in env)
    assert env["KEPT"] == "1"
    assert node_environment(base, FACTS, token_path=TOKEN, temp_dir=None)["CUDA_VISIBLE_DEVICES"] == value
    assert _env(TMPDIR="/mine")["TMPDIR"] == "/mine"


def test_without_an_interface_nothing_is_said() -> None:
    env = _env(dataclasses.replace(FACTS, interface=None))
    assert not any(name.endswith("_SOCKET_IFNAME") for name in env)


@pytest.mark.parametrize(
    "name", ["NUMEXPR_MAX_THREADS", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "RAY_USAGE_STATS_ENABLED"]
)
def test_what_the_user_set_wins(name: str) -> None:
    assert _env(**{name: "mine"})[name] == "mine"


def test_the_rest_is_left_alone() -> None:
    base = {"HF_TOKEN": "t", "CUDA_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "0"}
    assert {name: _env(**base)[name] for name in base} == base


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({}, None),
        ({"HIP_VISIBLE_DEVICES": "0"}, "0"),
        ({"ROCR_VISIBLE_DEVICES": "1"}, "1"),
        ({"CUDA_VISIBLE_DEVICES": "2"}, "2"),
        ({"HIP_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "2"}, "0"),
        ({"ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "2"}, "1"),
    ],
)
def test_on_amd_only_hip_is_left(given: dict[str, str], left: str | None) -> None:
    more = {"GPU_DEVICE_ORDINAL": "0", "ZE_AFFINITY_MASK": "0"}
    env = _env(dataclasses.replace(FACTS, gpus=Gpus("amd", 8)), **given, **more)
    names = {*more, "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}
    assert [(name, env[name]) for name in names & set(env)] == ([("HIP_VISIBLE_DEVICES", left)] if left else [])
