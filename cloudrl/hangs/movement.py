"""Whether the processes of a job have done anything between two looks. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_BUSY_CORES = 0.5
_BUSY_BYTES_PER_S = 1_000_000.0
_BUSY_GPU_PERCENT = 5.0
_WAITING_WATTS = 2.2
"""Times the idle power: a GPU that waits for another one in a collective shows 100% at little more than idle power.
Not measured yet, see the limits in docs/hangs.md."""


@dataclass(frozen=True)
class GpuWork:
    """One GPU, None where its tool does not say.

    Attributes:
        percent: share of the last moment in which a kernel ran.
        watts: its power.
        idle_watts: the lowest power that it has been seen at.
    """

    percent: float | None = None
    watts: float | None = None
    idle_watts: float | None = None


def moves(cores: float, bytes_per_s: float, gpus: Iterable[GpuWork] = ()) -> bool:
    """Whether anything works on the job.

    Args:
        cores: CPU seconds a second of its processes, without those that only tick over.
        bytes_per_s: that they read and write, over sockets too.
        gpus: of all its nodes.
    """
    is_busy = cores > _BUSY_CORES or bytes_per_s > _BUSY_BYTES_PER_S
    return is_busy or any(map(_computes, gpus))


def _computes(gpu: GpuWork) -> bool:
    if gpu.percent is None or gpu.percent <= _BUSY_GPU_PERCENT:
        return False
    if gpu.watts is None or gpu.idle_watts is None:
        return True
    return gpu.watts > _WAITING_WATTS * gpu.idle_watts
