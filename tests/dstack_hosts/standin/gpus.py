"""GPUs that only seem to be there: devices, a driver's `nvidia-smi`, and which job has which.

A device is a file. That of an NVIDIA GPU has what `nvidia-smi` says of it, "MiB used, per cent busy": a test writes it
on the host. Source: dstack, runner/internal/shim/docker.go (configureGpus), resources.go (GpuLock), host/gpu.go.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .config import HostConfig

CONTROL = Path("/dev/nvidiactl")
_KFD = "/dev/kfd"
_NVIDIA_SMI = Path("/usr/bin/nvidia-smi")
_PROGRAM = """\
#!/bin/sh
for gpu in /dev/nvidia[0-9]*; do
    case "$1" in
    --version) echo "CUDA Version        : CUDA" && break ;;
    -L) echo "GPU ${gpu#/dev/nvidia}: NAME (UUID: GPU-${gpu#/dev/nvidia})" ;;
    *) cat "$gpu" ;;
    esac
done
"""


def device(host: HostConfig, number: int) -> str:
    """The file that is a GPU of a host."""
    return f"/dev/dri/renderD{128 + number}" if host.gpu_vendor == "amd" else f"/dev/nvidia{number}"


def install(host: HostConfig) -> None:
    """Have the devices, idle, and their driver, on the host itself."""
    if host.gpus and host.gpu_vendor == "nvidia":
        _NVIDIA_SMI.write_text(_PROGRAM.replace("NAME", host.gpu_name).replace(": CUDA", f": {host.cuda}"))
        _NVIDIA_SMI.chmod(0o755)
    for path in (*_shared(host), *(device(host, number) for number in range(host.gpus))):
        Path(path).parent.mkdir(exist_ok=True)
        if not Path(path).exists():
            Path(path).write_text("0, 0\n")


def in_container(host: HostConfig, gpus: Iterable[int]) -> list[str]:
    """The files of the host that a container with some of its GPUs has."""
    own = [device(host, number) for number in gpus]
    return [*_shared(host), *own] if own else []


def acquire(host: HostConfig, count: int, taken: set[int]) -> list[int]:
    """So many GPUs that are not taken, all of those for -1.

    Raises:
        ValueError: there are fewer.
    """
    free = [number for number in range(host.gpus) if number not in taken]
    if len(free) < count:
        raise ValueError(f"no capacity: {count} GPUs requested, {len(free)} available")
    return free if count < 0 else free[:count]


def _shared(host: HostConfig) -> list[str]:
    if not host.gpus:
        return []
    return [_KFD] if host.gpu_vendor == "amd" else [str(CONTROL), str(_NVIDIA_SMI)]
