"""Whether what is to be loaded fits, said before it is loaded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from cloudrl.errors import InputError
from cloudrl.units import size_text

_GPU_WORK_BYTES = 3 << 30
"""The encoder in float16, scores of a block, and CUDA itself; an estimate."""
_CPU_WORK_BYTES = 1 << 30
"""Python, torch, the encoder in float32, scores of a block; an estimate."""


@dataclass(frozen=True)
class Memory:
    """Bytes of a machine or a GPU."""

    where: str
    total: int
    free: int


def host_memory(root: Path = Path("/")) -> Memory:
    """What processes may still take here: of the machine, or of the container or job if that allows less.

    Args:
        root: where proc and sys are.
    """
    meminfo = dict(re.findall(r"^(\w+): +(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE))
    total, free = (int(meminfo[name]) * 1024 for name in ("MemTotal", "MemAvailable"))
    limits = [limit for group in _groups(root) if (limit := _limit(group)) and limit[0] < total]
    if not limits:
        return Memory("this machine", total, free)
    return Memory("this container or job", min(most for most, _ in limits), min(free, *(left for _, left in limits)))


def _groups(root: Path) -> list[Path]:
    """The control groups that this process is in, up to the root: v2's, and v1's for memory where it is mounted."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = ["0::/"]
    groups = list[Path]()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        group = top / path.lstrip("/")
        groups += [above for above in (group, *group.parents) if above.is_relative_to(top)]
    return groups


def _limit(group: Path) -> tuple[int, int] | None:
    """What a group allows, and what is left of it; None without a limit.

    v1 counts groups below only in `total_...` (the kernel's cgroup-v1/memory.rst).
    """
    for most, current, prefix in (
        ("memory.max", "memory.current", ""),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        try:
            limit, used = (int((group / name).read_text()) for name in (most, current))
            cached = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # of the other version, or no limit: "max"
            continue
        return limit, limit - used + sum(int(cached[f"{prefix}{name}_file"]) for name in ("inactive", "active"))
    return None


def gpu_memory(device: str) -> Memory:
    """Of a device of torch: `cuda:0`, which it also calls those of AMD.

    Raises:
        InputError: there is not enough memory.
    """
    import torch

    try:
        free, total = torch.cuda.mem_get_info(device)
    except (RuntimeError, ValueError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"the device {device} cannot be used: {reason}", hint="--device cpu") from error
    return Memory(device, total, free)


def check_host(memory: Memory, bytes_needed: int, *, hint: str, from_disk: bool = False) -> str:
    """What the vectors take, as a sentence.

    Args:
        memory: there is.
        bytes_needed: by the vectors.
        hint: for the case that they do not fit.
        from_disk: whether each batch may read them from the disk.

    Raises:
        InputError: they do not fit; unless `from_disk`.
    """
    needed = bytes_needed + _CPU_WORK_BYTES
    text = f"the index takes {size_text(needed)} of memory; {memory.where} has {size_text(memory.free)} free"
    if needed > memory.free and not from_disk:
        raise InputError(f"{text} of {size_text(memory.total)}", hint=hint)
    return text


def check_gpu(memory: Memory, bytes_needed: int) -> str:
    """What the vectors take, and what they leave to the training, as a sentence.

    Raises:
        InputError: they do not fit.
    """
    needed = bytes_needed + _GPU_WORK_BYTES
    text = f"the index takes {size_text(needed)} on {memory.where}, which has {size_text(memory.free)} free"
    if needed > memory.free:
        raise InputError(
            f"{text} of {size_text(memory.total)}",
            hint="Half of it: --precision float16\nNone of it: --device cpu\nOr start it before what fills the GPU",
        )
    share = (memory.total - needed) / memory.total
    return f"{text}; {share:.0%} of it is left to others (for verl: actor_rollout_ref.rollout.gpu_memory_utilization)"
