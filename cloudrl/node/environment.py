"""The variables that Ray and every job on this node inherit. What the user set always wins."""

import os
import socket
import sys
from pathlib import Path
from typing import Dict, Mapping, Optional

from cloudrl.node.host_info import HostInfo
from cloudrl.node.packages import with_packages
from cloudrl.private_files import make_folder
from cloudrl.protocol.folders import COMPILED, HUB_CACHE

VISIBLE_DEVICES = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""On AMD, the first of them that is set counts."""

_NO_METRICS = {"RAY_enable_metrics_collection": "0", "DASHBOARD_METRIC_PORT": "-1", "AUTOSCALER_METRIC_PORT": "-1"}


def with_own_python(base: Mapping[str, str]) -> Dict[str, str]:
    """What the agent was started with, but `python3` is its Python, also where that was never activated.

    Set-up commands, services and jobs say `python3`, and mean one. What the first of them install, all others find.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), base.get("PATH", os.defpath)])
    return with_packages({**base, "PATH": path})


def make_temp_folder(ray_temp_dir: Optional[Path]) -> Optional[Path]:
    """The folder for TMPDIR, made below Ray's own; None where Ray has its usual one.

    Jobs leave files there (verl: a lock a checkpoint), so that these go when Ray's do.
    """
    if ray_temp_dir is None:
        return None
    make_folder(ray_temp_dir)
    make_folder(ray_temp_dir / "tmp")
    return ray_temp_dir / "tmp"


def node_environment(
    base: Mapping[str, str],
    host: HostInfo,
    *,
    token_path: Path,
    temp_dir: Optional[Path],
    device: str = "gpu",
    checkpoints: Optional[Path] = None,
) -> Dict[str, str]:
    """The environment of `ray start` and of all children.

    Args:
        base: from `with_own_python`.
        host: this machine.
        temp_dir: for TMPDIR, when this node has a folder of its own for that.
        token_path: file with Ray's token; a path, so that the secret shows in no process listing.
        device: what the jobs compute on, "gpu" or "cpu".
        checkpoints: the folder of checkpoints.
    """
    env = dict(base)
    # Set on every node: Ray 2.60 turns authentication on by itself where ~/.ray/auth_token is about, and a
    # cluster with it on one node only falls apart (ray/_private/authentication/authentication_token_setup.py).
    env.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token_path))
    env.pop("RAY_AUTH_TOKEN", None)
    env.pop("RAY_ADDRESS", None)
    if temp_dir is not None:
        env["TMPDIR"] = str(temp_dir)
    env.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # `breakpoint()` in a job would listen on the cluster address, without a password, and wait for ever (Ray 2.60,
    # util/debugpy.py); with this it does nothing (util/rpdb.py). `submit --debug` brings debuggers of another kind.
    env.setdefault("RAY_DEBUG", "0")
    # and in processes that Ray has not connected, Python's own would end a job that has no terminal (BdbQuit)
    env.setdefault("PYTHONBREAKPOINT", "0")
    # Ray's metrics would be served on all interfaces, without a token. The two ports have no switch: a number that is
    # none keeps dashboard and autoscaler from serving (ray/dashboard/consts.py, ray/autoscaler/_private/constants.py).
    for name, value in _NO_METRICS.items():
        env.setdefault(name, value)
    env.setdefault("NUMEXPR_MAX_THREADS", str(host.cpus))
    if host.interface is not None:
        env.setdefault("GLOO_SOCKET_IFNAME", host.interface)
        env.setdefault("NCCL_SOCKET_IFNAME", host.interface)
    if device == "cpu":  # Ray counts a stand-in for a GPU, and takes no number that is above the visible ones
        return {name: value for name, value in env.items() if name not in VISIBLE_DEVICES}
    env = {**_compile_caches(env, checkpoints), **env}
    return _only_hip(env) if host.gpus.vendor == "amd" else env


def _compile_caches(env: Mapping[str, str], checkpoints: Optional[Path]) -> Dict[str, str]:
    """Compiled kernels on the disk of the checkpoints, where they outlive a restart of the run.

    Only where models are there, too, because the home of the container does not outlive it. Each machine has a folder
    of its own, also on a shared disk: processes of two machines take each other's files away.
    """
    if checkpoints is None or env.get("HF_HOME") != str(checkpoints / HUB_CACHE):
        return {}
    folder = checkpoints / COMPILED / socket.gethostname()
    return {
        "VLLM_CACHE_ROOT": str(folder / "vllm"),  # with Inductor's and Triton's of its engines (vllm/envs.py)
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),  # torch/_inductor/runtime/cache_dir_utils.py
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


def _only_hip(env: Dict[str, str]) -> Dict[str, str]:
    """On AMD keep HIP_VISIBLE_DEVICES alone; verl refuses ROCR with it (verl/single_controller/base/worker.py)."""
    visible = env.pop("ROCR_VISIBLE_DEVICES", None)
    cuda = env.pop("CUDA_VISIBLE_DEVICES", None)
    devices = env.get("HIP_VISIBLE_DEVICES") or visible or cuda
    if devices:
        env["HIP_VISIBLE_DEVICES"] = devices
    for name in ("GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"):
        env.pop(name, None)
    return env
