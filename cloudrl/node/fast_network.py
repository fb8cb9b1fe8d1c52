"""Fast networks between nodes that NCCL is not going to use, and what it lacks.

NCCL falls back to TCP without a word when a library is missing, and training over several nodes then takes several
times as long. Sources: NCCL 2.28 (src/misc/ibvwrap.cc, src/plugin/net.cc) loads `libibverbs.so.1` and, for all other
networks, a plug-in `libnccl-net.so`; dstack 0.22.5 passes /dev/infiniband to every container (runner/internal/shim/
docker.go), puts EFA's plug-in into its own image only, and mounts that of Google's A3 machines (both in
core/services/backends/provisioning.py).
"""

import subprocess
import sys
from pathlib import Path
from typing import Callable, List, Mapping, NamedTuple, Tuple

from cloudrl.protocol.report import NodeWarning, WarningKind

_LOAD_S = 20.0
_VERBS = "libibverbs.so.1"


class _Google(NamedTuple):
    """GPUDirect of one of Google's machine types.

    Attributes:
        folders: where its plug-in may be, as dstack mounts it and as it is on the machine itself.
        variables: which NCCL needs besides.
    """

    name: str
    folders: Tuple[str, ...]
    variables: str


_GOOGLE = (
    _Google(
        "GPUDirect-TCPXO (A3 Mega)", ("var/lib/tcpxo/lib64", "var/lib/fastrak/lib64"),
        "those that nccl-env-profile.sh in that folder sets",
    ),
    _Google(
        "GPUDirect-TCPX (A3 High)", ("usr/local/tcpx/lib64", "var/lib/tcpx/lib64"),
        "NCCL_GPUDIRECTTCPX_* as in dstack's example for A3 High",
    ),
)  # fmt: skip


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
) -> List[NodeWarning]:
    """Warnings about fast networks of this machine that NCCL cannot use from here.

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
            _unused(
                f"{_names(devices)}: this machine has RDMA devices and this container has no /dev/infiniband",
                "--set dstack.privileged=true, as pods need it; elsewhere docker run --device /dev/infiniband",
            )
        )
    elif verbs and not loads(_VERBS, env):
        warnings.append(
            _unused(
                f"{_names(verbs)}: InfiniBand or RoCE, and {_VERBS} is missing in this image",
                "--setup 'apt-get update && apt-get install -y libibverbs1 ibverbs-providers'",
            )
        )
    elif efa and not loads(plugin, env):
        warnings.append(
            _unused(
                f"{_names(efa)}: EFA, and its plug-in {plugin} is missing in this image",
                "an image with aws-ofi-nccl, or a set-up command that runs Amazon's aws-efa-installer (--skip-kmod)",
            )
        )
    for google in _GOOGLE:
        folder = next((folder for folder in google.folders if (root / folder).is_dir()), None)
        if folder is not None and not loads(plugin, env):
            warnings.append(
                _unused(
                    f"/{folder}: {google.name}, and its {plugin} is not on the loader's path",
                    # LD_LIBRARY_PATH from outside would take the place of the image's own
                    f"--setup 'echo /{folder} > /etc/ld.so.conf.d/gpudirect.conf && ldconfig', and the variables: "
                    f"{google.variables}",
                )
            )
    return warnings


def _unused(text: str, remedy: str) -> NodeWarning:
    return NodeWarning(f"{text}; NCCL will use TCP", remedy, WarningKind.NETWORK)


def _names(devices: List[Path]) -> str:
    return ", ".join(device.name for device in devices)
