"""Is this machine good enough? Pure judgement over `HostInfo`, and the few probes that must write or import."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from cloudrl.node.environment import VISIBLE_DEVICES
from cloudrl.node.fast_network import unused_networks
from cloudrl.node.host_info import GIB, RAY_DISK_LIMIT, HostInfo
from cloudrl.node.memlock import too_little_locked_memory
from cloudrl.node.ray import ray_command
from cloudrl.protocol.limits import CPUS_PER_GPU
from cloudrl.protocol.options import AgentOptions
from cloudrl.protocol.report import HeartbeatReply, NodeReport, NodeWarning

_MIN_SHM_BYTES = 1 * GIB
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
        subjects, codes = (fault.subject for fault in faults), (fault.code for fault in faults if fault.code)
        return cls(", ".join(subjects), "; ".join(fault.text for fault in faults), ", ".join(codes))


def check_node(
    host: HostInfo, env: Mapping[str, str], options: AgentOptions, *, gpus: int, nodes: int
) -> Tuple[List[Fault], List[NodeWarning]]:
    """Faults and warnings of a machine with the environment and the folders that its jobs get.

    Args:
        host: the machine.
        env: of the agent.
        options: of the agent.
        gpus: declared for each node.
        nodes: of the cluster.
    """
    on_gpus = options.device == "gpu"
    faults, warnings = check_host(host, device=options.device, gpus=gpus, cpus=options.cpus)
    warnings += [*unused_networks(env), *too_little_locked_memory(host.memlock_bytes)] if on_gpus and nodes > 1 else []
    hidden = hidden_gpus(env, host.gpus.vendor, gpus if on_gpus else 0)
    faults += filter(None, [hidden, unwritable(options.checkpoints), missing_program(host)])
    return faults, warnings


def check_host(host: HostInfo, *, device: str, gpus: int, cpus: Optional[int]) -> Tuple[List[Fault], List[NodeWarning]]:
    """Compare a machine with what was declared.

    Args:
        host: the machine.
        device: "gpu", or "cpu" where GPUs are slots that Ray only counts.
        gpus: GPUs declared for each node.
        cpus: CPUs that Ray will be told, None to let it count.

    Returns:
        (faults, warnings). A fault ends the node.
    """
    problems = [*_software(host), *_cpus_and_disk(host, gpus, host.cpus if cpus is None else cpus)]
    if device == "gpu":
        problems += _gpu_machine(host, gpus)
    faults = [problem for problem in problems if isinstance(problem, Fault)]
    return faults, [problem for problem in problems if isinstance(problem, NodeWarning)]


def _software(host: HostInfo) -> Iterator[Union[Fault, NodeWarning]]:
    if host.ray_version is None:
        reason = "no Ray in this Python; add a set-up command `pip install 'ray[default]'` or take a verl image"
        yield Fault("ray", reason)
        return
    version = re.match(r"(\d+)\.(\d+)", host.ray_version)
    if version and tuple(map(int, version.groups())) < _TOKEN_SINCE:
        danger = "whoever reaches Ray's ports can run programs on the nodes"
        remedy = "keep their network closed, or take an image with Ray 2.52 or later"
        yield NodeWarning(f"Ray {host.ray_version} has no token authentication: {danger}", remedy)


def _cpus_and_disk(host: HostInfo, gpus: int, cpus: int) -> Iterator[Union[Fault, NodeWarning]]:
    if host.temp_free_fraction < RAY_DISK_LIMIT:
        used, free_gib = 1 - host.temp_free_fraction, host.temp_free_bytes / GIB
        reason = f"the disk of Ray's folder is {used:.0%} full, {free_gib:.1f} GiB free; Ray needs 5% free"
        yield Fault("disk", reason)
    if cpus < (wanted := CPUS_PER_GPU * gpus):
        reason = f"{cpus} CPUs for {gpus} GPUs; verl waits forever with fewer than {wanted}, 3 per GPU"
        yield Fault("cpus", reason)


def _gpu_machine(host: HostInfo, gpus: int) -> Iterator[Union[Fault, NodeWarning]]:
    have = host.gpus
    if have.count < gpus:
        because, code = (f": {have.problem}", " problem") if have.problem else ("", "")
        reason = f"{have.count} GPUs found, {gpus} declared{because}"
        yield Fault("gpus", reason, ("fewer" if have.count else "none") + code)
    if host.shm_bytes is not None and host.shm_bytes < _MIN_SHM_BYTES:
        size_mib = host.shm_bytes / 1024**2
        reason = f"/dev/shm has {size_mib:.0f} MiB; NCCL and Ray need at least 1 GiB (shm_size)"  # noqa: S108
        yield Fault("shm", reason)
    if host.memory_bytes < (wanted := _RAM_PER_GPU_BYTES * gpus):
        memory_gib = host.memory_bytes / GIB
        yield NodeWarning(f"{memory_gib:.0f} GiB of RAM for {gpus} GPUs; {wanted / GIB:.0f} GiB is advised")
    if host.open_files < _OPEN_FILES:
        yield NodeWarning(f"`ulimit -n` is {host.open_files} and cannot be raised; {_OPEN_FILES} is advised")
    if host.interface is None:
        yield NodeWarning("no network interface carries this node's IP; GLOO_SOCKET_IFNAME is left alone")


def hidden_gpus(env: Mapping[str, str], vendor: Optional[str], gpus: int) -> Optional[Fault]:
    """Why Ray would not start with so many GPUs, or None: it takes no more than a variable lets it see.

    Ray 2.60, _private/accelerators/nvidia_gpu.py and amd_gpu.py, `get_current_process_visible_accelerator_ids`.
    """
    names = [name for name in (VISIBLE_DEVICES if vendor == "amd" else VISIBLE_DEVICES[-1:]) if name in env]
    name = next((name for name in names if env[name]), next(iter(names), None))
    if name is None:
        return None
    seen = 0 if env[name] in ("", "NoDevFiles") else len(env[name].split(","))
    if seen >= gpus:
        return None
    reason = f"{name}={env[name]!r} shows {seen} GPUs, {gpus} declared: unset it, or declare fewer"
    return Fault("gpus", reason, "hidden")


def missing_program(host: HostInfo) -> Optional[Fault]:
    """Why `ray start` could not even begin, or None: a package may be there without its programs."""
    program = ray_command()
    is_missing = host.ray_version is not None and not shutil.which(program)
    return Fault("program", f"there is no program `{program}` on this node") if is_missing else None


def unwritable(folder: Path) -> Optional[Fault]:
    """Why `folder` cannot be written to, or None. Makes it when it is missing."""
    probe = folder / f".cloudrl-probe-{secrets.token_hex(8)}"  # agents in two containers may have one process number
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        reason = f"the checkpoint folder {folder} cannot be written by user {os.getuid()}: {error.strerror}"
        return Fault("checkpoints", reason, errno.errorcode.get(error.errno or 0, type(error).__name__))
    return None


def different(own: NodeReport, head: HeartbeatReply) -> Optional[Fault]:
    """Why this node's software does not fit the head's, or None. Ray refuses to join otherwise (ray issue 44063)."""
    for name, mine, wanted in (
        ("Ray", own.ray_version, head.ray_version),
        ("Python", own.python_version, head.python_version),
    ):
        if mine != wanted:
            reason = f"{name} {mine} here and {wanted} on rank 0; all nodes need the same"
            return Fault(f"version of {name}", reason)
    return None
