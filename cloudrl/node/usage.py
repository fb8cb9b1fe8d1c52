"""How busy this machine is, as Linux counts (Documentation/filesystems/proc.rst, admin-guide/cgroup-v2.rst)."""

import dataclasses
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Dict, Optional

from cloudrl.control_groups import memory_limits
from cloudrl.node.background import repeat
from cloudrl.node.gpu_tools import ToolWatch
from cloudrl.node.host_info import RAY_DISK_LIMIT, existing
from cloudrl.node.node_state import NodeState
from cloudrl.node.ray import TEMP_DIR
from cloudrl.protocol.folders import MEMORY
from cloudrl.protocol.options import AgentOptions
from cloudrl.protocol.report import Usage

EVERY_S = 5.0
_VIRTUAL = ("lo", "docker", "veth", "br-", "cni", "virbr", "flannel", "cali")
"""Interfaces: what passes through them leaves no machine, or is counted by another one, too."""


class HostSampler:
    """Looks at this machine again and again.

    Args:
        disk: a folder on the disk that is reported; it need not exist yet.
        ray_folder: where Ray writes, which refuses work on a disk that is nearly full; likewise.
        root: where `proc` and `sys` are.
        clock: seconds that never run backwards.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        disk: Path,
        root: Path = Path("/"),
        *,
        ray_folder: Optional[Path] = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._disk, self._root, self._clock, self._now = disk, root, clock, now
        self._ray_folder = ray_folder
        self._counted_at = 0.0
        self._counters: Dict[str, int] = {}

    def sample(self) -> Usage:
        """What is in use now, and rates since the sample before; the first one has none."""
        measured: Dict[str, Any] = self._rates()
        with suppress(OSError, ValueError, KeyError):
            measured.update(_memory(self._root))
        with suppress(OSError):
            disk = shutil.disk_usage(existing(self._disk))
            measured.update(disk_used_bytes=disk.used, disk_total_bytes=disk.used + disk.free)  # less what is root's
            if self._ray_folder is not None and _is_same_disk(disk, shutil.disk_usage(existing(self._ray_folder))):
                measured.update(disk_kept_bytes=int(RAY_DISK_LIMIT * disk.total))
        with suppress(OSError):
            shared = shutil.disk_usage(self._root / MEMORY.lstrip("/"))
            measured.update(shm_used_bytes=shared.used, shm_total_bytes=shared.total)
        return Usage(round(self._now(), 3), **measured)

    def _rates(self) -> Dict[str, float]:
        before, seconds, self._counted_at = self._counters, self._clock() - self._counted_at, self._clock()
        self._counters = {}
        for read in (_cpu, _network):
            with suppress(OSError, ValueError, IndexError):
                self._counters.update(read(self._root))
        grown = {name: max(0, count - before[name]) for name, count in self._counters.items() if name in before}
        busy, ticks = grown.pop("busy", 0), grown.pop("ticks", 0)
        rates = {name: round(count / seconds, 1) for name, count in grown.items() if seconds > 0}
        return {**rates, "cpu_percent": round(100 * busy / ticks, 1)} if ticks else rates


def start_sampling(state: NodeState, options: AgentOptions, *, has_gpus: bool) -> None:
    """Keep this node's report up to date, in a thread: a disk of the network may hang."""
    sampler = HostSampler(options.checkpoints, ray_folder=options.ray_temp_dir or TEMP_DIR)
    tool = ToolWatch(lambda: state.own.ip not in state.published.gpus_of_ray)
    if has_gpus:
        tool.start()

    repeat(lambda: state.update(usage=dataclasses.replace(sampler.sample(), gpus=tool.gpus)), EVERY_S)


def _is_same_disk(one: Any, other: Any) -> bool:
    """By their sizes: a container's own root and a mounted folder of the host have two device numbers on one disk."""
    return bool(one.total == other.total and abs(one.free - other.free) <= one.total / 1000)


def _cpu(root: Path) -> Dict[str, int]:
    """Ticks of all CPUs: user, nice, system, idle, iowait, irq, softirq, steal."""
    ticks = [int(count) for count in (root / "proc/stat").read_text().splitlines()[0].split()[1:9]]
    return {"busy": sum(ticks) - ticks[3] - ticks[4], "ticks": sum(ticks)}


def _network(root: Path) -> Dict[str, int]:
    rows = [line.partition(":") for line in (root / "proc/net/dev").read_text().splitlines()[2:]]
    counts = [counts.split() for name, _, counts in rows if not name.strip().startswith(_VIRTUAL)]
    return {
        name: sum(int(row[at]) for row in counts) for name, at in (("received_bytes_per_s", 0), ("sent_bytes_per_s", 8))
    }


def _memory(root: Path) -> Dict[str, int]:
    """Of the machine, or of the container or job where that may use less; pages that are only cached count as free.

    So does Ray's monitor count, which ends processes (Ray 2.60, _private/utils.py: get_cgroup_used_memory).
    """
    lines = [line.split() for line in (root / "proc/meminfo").read_text().splitlines()]
    sizes = {line[0]: 1024 * int(line[1]) for line in lines}
    used, total = sizes["MemTotal:"] - sizes["MemAvailable:"], sizes["MemTotal:"]
    group = min(memory_limits(root), default=None)
    if group is not None and group.limit < total:
        used, total = group.used, group.limit
    return {"memory_used_bytes": used, "memory_total_bytes": total}
