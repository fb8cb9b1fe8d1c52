"""Fast networks between nodes that NCCL is not going to use, and what it lacks.

NCCL falls back to TCP without a word when a library is missing, and training over several nodes then takes several
times as long. Sources: NCCL 2.28 (src/misc/ibvwrap.cc, src/plugin/net.cc) loads `libibverbs.so.1` and, for all other
networks, a plug-in `libnccl-net.so`; dstack 0.22.5 passes /dev/infiniband to every container (runner/internal/shim/
docker.go) and puts EFA's plug-in into its own image only (core/backends/provisioning.py); Google's A3 machines bring
theirs in /var/lib/tcpx and /var/lib/tcpxo.
"""

import subprocess
import sys
from pathlib import Path
from typing import Callable, List, Mapping

_LOAD_S = 20.0
_VERBS = "libibverbs.so.1"
_GOOGLE = ("tcpxo", "tcpx")


def loads(library: str, env: Mapping[str, str]) -> bool:
    """Whether the dynamic loader finds a library, as NCCL asks it. In a child: it runs the library's own code."""
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    command = [sys.executable, "-c", code, library]
    try:
        return subprocess.run(command, env=dict(env), capture_output=True, timeout=_LOAD_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def unused_networks(
    env: Mapping[str, str], *, root: Path = Path("/"), loads: Callable[[str, Mapping[str, str]], bool] = loads
) -> List[str]:
    """Warnings, one line each, about fast networks of this machine that NCCL cannot use from here.

    Args:
        env: this node's environment, which training will have.
        root: of the file system that is looked at.
        loads: whether a library is found with these variables.
    """
    devices = sorted((root / "sys/class/infiniband").glob("*"))
    efa = [device for device in devices if (device / "device/driver").resolve().name == "efa"]
    verbs = [device for device in devices if device not in efa]
    plugin = f"libnccl-net-{env['NCCL_NET_PLUGIN']}.so" if env.get("NCCL_NET_PLUGIN") else "libnccl-net.so"
    warnings = []
    if devices and not any((root / "dev/infiniband").glob("uverbs*")):
        warnings.append(
            f"{_names(devices)}: this machine has RDMA devices and this container has no /dev/infiniband; "
            "NCCL will use TCP -> pass the devices on (docker run --device /dev/infiniband; dstack: privileged: true)"
        )
    elif verbs and not loads(_VERBS, env):
        warnings.append(
            f"{_names(verbs)}: InfiniBand or RoCE, and {_VERBS} is missing in this image; NCCL will use TCP -> "
            "--setup 'apt-get update && apt-get install -y libibverbs1 ibverbs-providers'"
        )
    elif efa and not loads(plugin, env):
        warnings.append(
            f"{_names(efa)}: EFA, and its plug-in {plugin} is missing in this image; NCCL will use TCP -> an image "
            "with aws-ofi-nccl, or a set-up command that runs Amazon's aws-efa-installer (--skip-kmod)"
        )
    for name in _GOOGLE:
        folder = root / "var/lib" / name / "lib64"
        if folder.is_dir() and not loads(plugin, env):
            warnings.append(
                f"/var/lib/{name}: GPUDirect of Google's A3 machines, and its libraries are not on the loader's "
                f"path; NCCL will use TCP -> --env LD_LIBRARY_PATH=/var/lib/{name}/lib64, and the variables of "
                "its nccl-env-profile.sh"
            )
    return warnings


def _names(devices: List[Path]) -> str:
    return ", ".join(device.name for device in devices)
