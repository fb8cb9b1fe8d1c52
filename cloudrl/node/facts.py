"""What this machine has: read once, judged by `preflight`."""

from __future__ import annotations

import fcntl
import os
import platform
import resource
import shutil
import socket
import struct
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Optional

GIB = 1024**3
_SIOCGIFADDR = 0x8915  # linux/sockios.h


@dataclass(frozen=True)
class Facts:
    """One node's hardware and software. Sizes are bytes; None where the machine does not say.

    Attributes:
        gpus: how many GPUs the driver shows.
        gpu_vendor: "nvidia", "amd", or None without GPUs.
        cpus: CPUs this process may use, cgroup quota included.
        shm_bytes: size of /dev/shm.
        temp_free_fraction: free share of the disk below Ray's temporary folder.
        interface: the network interface that carries the node's IP.
        open_files: soft limit of open files, after it was raised.
    """

    gpus: int
    gpu_vendor: Optional[str]
    cpus: int
    memory_bytes: int
    shm_bytes: Optional[int]
    temp_free_fraction: float
    temp_free_bytes: int
    interface: Optional[str]
    open_files: int
    ray_version: Optional[str]
    python_version: str
    verl_version: Optional[str]


def gather(ip: str, temp_dir: Path) -> Facts:
    """Look at this machine. Raises the limit of open files as far as it may go.

    Args:
        ip: this node's address in the cluster's network.
        temp_dir: where Ray will write; it need not exist yet.
    """
    vendor, gpus = count_gpus()
    disk = shutil.disk_usage(_existing(temp_dir))
    return Facts(
        gpus=gpus,
        gpu_vendor=vendor,
        cpus=_cpus(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        shm_bytes=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None,  # noqa: S108
        temp_free_fraction=disk.free / disk.total,
        temp_free_bytes=disk.free,
        interface=interface_of(ip),
        open_files=_raise_open_files(),
        ray_version=_version("ray"),
        python_version=platform.python_version(),
        verl_version=_version("verl"),
    )


def count_gpus() -> tuple[Optional[str], int]:
    """Vendor and number of the GPUs that the driver shows: nvidia-smi, or the kfd's render nodes on AMD."""
    if shutil.which("nvidia-smi"):
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False)
        count = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
        return ("nvidia", count) if count else (None, 0)
    if Path("/dev/kfd").exists():
        return "amd", sum(1 for _ in Path("/dev/dri").glob("renderD*"))
    return None, 0


def interface_of(ip: str) -> Optional[str]:
    """Name of the interface whose IPv4 address is `ip`, for GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # the interface has no IPv4 address
            if socket.inet_ntoa(answer[20:24]) == ip:
                return name
    return None


def _cpus() -> int:
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return allowed
    return allowed if quota == "max" else max(1, min(allowed, int(quota) // int(period)))


def _raise_open_files(wanted: int = 65_536) -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _version(package: str) -> Optional[str]:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)
