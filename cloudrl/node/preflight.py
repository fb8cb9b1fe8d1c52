"""Is this machine good enough? Pure judgement over `HostInfo`, and the few probes that must write or import."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING, List, NamedTuple, Optional, Sequence, Tuple

from cloudrl.node.host_info import GIB, HostInfo

if TYPE_CHECKING:
    from pathlib import Path

    from cloudrl.protocol.report import HeartbeatReply, NodeReport

CPUS_PER_GPU = 3
"""verl 0.9.1 asks Ray for {CPU: 3, GPU: 1} a worker (single_controller/ray/base.py, max_colocate_count)."""

_MIN_SHM_BYTES = 1 * GIB
_RAY_DISK_LIMIT = 0.05  # Ray refuses to spill when less is free (RAY_local_fs_capacity_threshold=0.95)
_RAM_PER_GPU_BYTES = 80 * GIB  # verl issue 275
_OPEN_FILES = 65_535
_TOKEN_SINCE = (2, 52)
"""The first Ray with token authentication (Ray 2.52, _private/authentication)."""


class Fault(NamedTuple):
    """Why a machine will not do, in one line; `subject` and `code` are as in `Failure`, the same on every machine."""

    subject: str
    text: str
    code: str = ""

    @classmethod
    def joined(cls, faults: Sequence[Fault]) -> Fault:
        """All of them as one."""
        subjects, codes = (each.subject for each in faults), (each.code for each in faults if each.code)
        return cls(", ".join(subjects), "; ".join(each.text for each in faults), ", ".join(codes))


def check_host(
    host: HostInfo, *, device: str, gpus: int, cpus: Optional[int]
) -> Tuple[List[Fault], List[str]]:
    """Compare a machine with what was declared.

    Args:
        host: the machine.
        device: "gpu", or "cpu" where GPUs are slots that Ray only counts.
        gpus: GPUs declared for each node.
        cpus: CPUs that Ray will be told, None to let it count.

    Returns:
        (faults, warnings): one line each. A fault ends the node.
    """
    faults, warnings = _software(host)
    if host.temp_free_fraction < _RAY_DISK_LIMIT:
        used, free_gib = 1 - host.temp_free_fraction, host.temp_free_bytes / GIB
        said = f"the disk of Ray's folder is {used:.0%} full, {free_gib:.1f} GiB free; Ray needs 5% free"
        faults.append(Fault("disk", said))
    if host.open_files < _OPEN_FILES:
        warnings.append(f"`ulimit -n` is {host.open_files} and cannot be raised; {_OPEN_FILES} is advised")
    have_cpus, want_cpus = host.cpus if cpus is None else cpus, CPUS_PER_GPU * gpus
    if have_cpus < want_cpus:
        said = f"{have_cpus} CPUs for {gpus} GPUs; verl waits for ever with less than {want_cpus}, 3 a GPU"
        faults.append(Fault("cpus", said))
    if device == "gpu":
        more_faults, more_warnings = _gpu_machine(host, gpus)
        faults, warnings = faults + more_faults, warnings + more_warnings
    return faults, warnings


def _software(host: HostInfo) -> Tuple[List[Fault], List[str]]:
    if host.ray_version is None:
        said = "no Ray in this Python; add a set-up command `pip install 'ray[default]'` or take a verl image"
        return [Fault("ray", said)], []
    version = re.match(r"(\d+)\.(\d+)", host.ray_version)
    if version and tuple(map(int, version.groups())) < _TOKEN_SINCE:
        danger = "whoever reaches Ray's ports can run programs on the nodes"
        remedy = "keep their network closed, or take an image with Ray 2.52 or later"
        return [], [f"Ray {host.ray_version} has no token authentication: {danger}; {remedy}"]
    return [], []


def _gpu_machine(host: HostInfo, gpus: int) -> Tuple[List[Fault], List[str]]:
    faults, warnings = [], []
    if host.gpus < gpus:
        because, code = (f": {host.gpu_problem}", " problem") if host.gpu_problem else ("", "")
        said = f"{host.gpus} GPUs found, {gpus} declared{because}"
        faults.append(Fault("gpus", said, ("fewer" if host.gpus else "none") + code))
    if host.shm_bytes is not None and host.shm_bytes < _MIN_SHM_BYTES:
        size_mib = host.shm_bytes / 1024**2
        said = f"/dev/shm has {size_mib:.0f} MiB; NCCL and Ray need at least 1 GiB (shm_size)"  # noqa: S108
        faults.append(Fault("shm", said))
    if host.memory_bytes < _RAM_PER_GPU_BYTES * gpus:
        have, want = host.memory_bytes / GIB, _RAM_PER_GPU_BYTES * gpus / GIB
        warnings.append(f"{have:.0f} GiB of RAM for {gpus} GPUs; {want:.0f} GiB is advised")
    if host.interface is None:
        warnings.append("no network interface carries this node's IP; GLOO_SOCKET_IFNAME is left alone")
    return faults, warnings


def unwritable(folder: Path) -> Optional[Fault]:
    """Why `folder` cannot be written to, or None. Makes it when it is missing."""
    probe = folder / f".cloudrl-probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        said = f"the checkpoint folder {folder} cannot be written by user {os.getuid()}: {error.strerror}"
        return Fault("checkpoints", said, errno.errorcode.get(error.errno or 0, type(error).__name__))
    return None


def different(own: NodeReport, head: HeartbeatReply) -> Optional[Fault]:
    """Why this node's software does not fit the head's, or None. Ray refuses to join otherwise (ray issue 44063)."""
    if own.ray_version != head.ray_version:
        said = f"Ray {own.ray_version} here and {head.ray_version} on rank 0; all nodes need the same"
        return Fault("version of Ray", said)
    if own.python_version != head.python_version:
        said = (
            f"Python {own.python_version} here and {head.python_version} on rank 0; all nodes need the same"
        )
        return Fault("version of Python", said)
    return None
