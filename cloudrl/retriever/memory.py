"""Whether what is to be loaded fits, said before it is loaded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from cloudrl.control_groups import memory_limits
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
    groups = [group for group in memory_limits(root) if group.limit < total]
    if not groups:
        return Memory("this machine", total, free)
    left = min(group.limit - group.used for group in groups)
    return Memory("this container or job", min(group.limit for group in groups), min(free, left))


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
