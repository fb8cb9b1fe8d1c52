"""What this machine has: read once, judged by `preflight`."""

import contextlib
import fcntl
import os
import platform
import re
import resource
import shutil
import socket
import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from cloudrl.control_groups import cpu_quota, memory_limits
from cloudrl.node.memlock import locked_memory_limit
from cloudrl.node.packages import installed_version

GIB = 1024**3
RAY_DISK_LIMIT = 0.05
"""Share of a disk that has to be free: Ray takes no work with less (Ray 2.60, RAY_local_fs_capacity_threshold)."""
NVIDIA_SMI_S = 60.0
_ENDS_S = 2.0
"""A process that is killed is mostly gone at once; one that hangs inside a driver is not waited for."""
ROLLOUTS = ("vllm", "sglang")
"""Distribution on PyPI and `actor_rollout_ref.rollout.name` alike (verl 0.9.1, workers/rollout/base.py)."""
_SIOCGIFADDR = 0x8915  # linux/sockios.h


@dataclass(frozen=True)
class Gpus:
    """What the driver shows: "nvidia", "amd" or None, how many, and its complaint if it does not list them."""

    vendor: Optional[str] = None
    count: int = 0
    problem: Optional[str] = None


@dataclass(frozen=True)
class HostInfo:
    """One node's hardware and software. Sizes are bytes; None where the machine does not say.

    Attributes:
        cpus: CPUs that this process may use.
        memory_bytes: RAM that this process may use.
        shm_bytes: size of /dev/shm.
        temp_free_fraction: free share of the disk below Ray's temporary folder.
        interface: the network interface that carries the node's IP.
        open_files: soft limit of open files, after it was raised.
        driver: release of the GPUs' driver; "" if unknown.
        rollout_versions: releases of the rollout engines that are installed, by the names that verl gives them.
        memlock_bytes: what `cloudrl.node.memlock` says; None where it is not limited, or nothing needs it.
    """

    gpus: Gpus
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
    driver: str = ""
    rollout_versions: Dict[str, str] = field(default_factory=dict)
    memlock_bytes: Optional[int] = None

    @property
    def reported(self) -> Dict[str, Any]:
        """What the node tells of it: fields of `NodeReport`."""
        return {
            "cpus": self.cpus,
            "ray_version": self.ray_version,
            "python_version": self.python_version,
            "verl_version": self.verl_version,
            "rollouts": tuple(self.rollout_versions),
            "rollout_versions": self.rollout_versions,
            "gpu_software": {"driver": self.driver} if self.driver else {},
        }


def probe_host(ip: str, temp_dir: Path, env: Mapping[str, str] = os.environ) -> HostInfo:
    """Look at this machine. Raises the limits of open files and of locked memory as far as they may go.

    Args:
        ip: this node's address in the cluster's network.
        temp_dir: where Ray will write; it need not exist yet.
        env: of the agent; in a step of Slurm it says what the job may use of this machine.

    Raises:
        OSError: the machine does not let itself be looked at.
    """
    disk = shutil.disk_usage(existing(temp_dir))
    return HostInfo(
        gpus=detect_gpus(),
        cpus=cpus(env),
        memory_bytes=memory_bytes(env),
        shm_bytes=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None,  # noqa: S108
        temp_free_fraction=disk.free / disk.total,
        temp_free_bytes=disk.free,
        interface=interface_of(ip),
        open_files=_raise_open_files(),
        ray_version=installed_version("ray", env),
        python_version=platform.python_version(),
        verl_version=installed_version("verl", env),
        driver=driver_version(),
        rollout_versions={name: version for name in ROLLOUTS if (version := installed_version(name, env))},
        memlock_bytes=locked_memory_limit(env),
    )


def detect_gpus(timeout_s: float = NVIDIA_SMI_S) -> Gpus:
    """Ask nvidia-smi, or count the kfd's render nodes on AMD."""
    if shutil.which("nvidia-smi"):
        return _ask_nvidia_smi(timeout_s)
    if Path("/dev/kfd").exists():
        return Gpus("amd", sum(1 for _ in Path("/dev/dri").glob("renderD*")))
    return Gpus()


def driver_version(root: Path = Path("/")) -> str:
    """Release of the kernel's driver of NVIDIA's or AMD's GPUs; "" without one, or where the system does not say."""
    for module in ("nvidia", "amdgpu"):
        with contextlib.suppress(OSError):  # AMD's in-tree driver has no version
            return (root / "sys/module" / module / "version").read_text().strip()
    return ""


def ask_driver(
    command: Sequence[str], answer_s: float, *, with_errors: bool = False
) -> Tuple["subprocess.Popen[bytes]", Optional[str]]:
    """Run a vendor's tool: its process, and what it prints; None if it does not answer in time.

    Not `subprocess.run`, which waits for the end of what it has killed: a process that hangs inside a driver ends when
    the driver lets it, and that may be never.

    Args:
        command: the program and its arguments.
        answer_s: how long it may take.
        with_errors: what it writes to standard error is part of the answer.

    Raises:
        OSError: it cannot be started.
    """
    nothing = subprocess.DEVNULL
    errors = subprocess.STDOUT if with_errors else nothing
    process = subprocess.Popen(list(command), stdin=nothing, stdout=subprocess.PIPE, stderr=errors)
    try:
        output, _ = process.communicate(timeout=answer_s)
    except subprocess.TimeoutExpired:
        process.kill()
        if process.stdout is not None:
            process.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDS_S)  # mostly it does, and is collected here
        return process, None
    return process, output.decode("utf-8", "replace")


def _ask_nvidia_smi(timeout_s: float) -> Gpus:
    """A driver of another version lets it fail with a sentence that says so, and a stuck one lets it hang."""
    try:
        process, output = ask_driver(["nvidia-smi", "-L"], timeout_s, with_errors=True)
    except OSError as error:
        return Gpus(problem=f"nvidia-smi cannot be started: {error.strerror}")
    if output is None:
        return Gpus(problem=f"nvidia-smi does not answer within {timeout_s:g} s")
    lines = output.splitlines()
    gpus = [line for line in lines if re.match(r"GPU \d+: ", line)]
    problem = None
    if process.returncode != 0:
        words = " ".join(" ".join(line for line in lines if line not in gpus).split())[:400]
        problem = f"nvidia-smi ended with status {process.returncode}: {words or 'no output'}"
    return Gpus("nvidia" if gpus else None, len(gpus), problem)


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


def cpus(env: Mapping[str, str], root: Path = Path("/")) -> int:
    """Processors that this process may use: of its container or job, not of the machine."""
    limits = [len(os.sched_getaffinity(0)), cpu_quota(root), _given_by_slurm(env, "SLURM_CPUS_ON_NODE")]
    return max(1, int(min(limit for limit in limits if limit)))


def memory_bytes(env: Mapping[str, str], root: Path = Path("/")) -> int:
    """RAM that this process may use: of its container or job, not of the machine."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    given_mib = _given_by_slurm(env, "SLURM_MEM_PER_NODE")
    limits = [machine, *(group.limit for group in memory_limits(root)), given_mib * 1024**2]
    return min(limit for limit in limits if limit)


def _given_by_slurm(env: Mapping[str, str], name: str) -> int:
    """A number that Slurm says to the steps of a job; 0 where it says none, and where the agent is no step of one."""
    number = env.get(name, "") if env.get("CLOUDRL_PROVIDER") == "slurm" else ""
    return int(number) if re.fullmatch(r"[0-9]{1,18}", number) else 0


def _raise_open_files(wanted: int = 65_536) -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def existing(path: Path) -> Path:
    """It, or the closest folder above it that is there."""
    return path if path.exists() else existing(path.parent)
