"""What Linux lets the processes of a container, a pod or a Slurm job use: the limits of their control groups. Travels.

Both versions are read: Documentation/admin-guide/cgroup-v2.rst, and cgroup-v1/memory.rst and scheduler/sched-bwc.rst. A
container usually sees its own group as the root, a job of Slurm sees the whole tree (slurm.conf(5): task/cgroup).
"""

import contextlib
from pathlib import Path
from typing import Iterator, List, NamedTuple, Optional, Tuple


class MemoryLimit(NamedTuple):
    """Bytes that a group may use, and how many of them are in use; pages that are only cached count as free."""

    limit: int
    used: int


def own_groups(controller: str, root: Path = Path("/")) -> List[Path]:
    """Folders of the control groups that this process is in, its own first, then those above it.

    Args:
        controller: "memory", "cpu", ...; of version 1, which has a hierarchy for each of them.
        root: where `proc` and `sys` are.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = ["0::/"]
    found: List[Path] = []
    for parts in (line.split(":", 2) for line in lines):
        if len(parts) != 3 or (parts[1] and controller not in parts[1].split(",")):
            continue
        top = root / "sys/fs/cgroup" / controller if parts[1] else _top_of_version_2(root / "sys/fs/cgroup")
        group = top / parts[2].lstrip("/")
        found += [above for above in (group, *group.parents) if above == top or top in above.parents]
    return found


def _top_of_version_2(mount: Path) -> Path:
    """Where systemd mounts version 2: alone, or beside version 1 (systemd, src/basic/cgroup-util.c: "hybrid")."""
    is_hybrid = (mount / "unified/cgroup.controllers").exists() and not (mount / "cgroup.controllers").exists()
    return mount / "unified" if is_hybrid else mount


def memory_limits(root: Path = Path("/")) -> List[MemoryLimit]:
    """The limit of each group that this process is in, of its own group first. Empty without a limit."""
    return [limit for group in own_groups("memory", root) for limit in _memory_limit(group)]


def cpu_quota(root: Path = Path("/")) -> Optional[float]:
    """CPUs whose time this process may use, by the tightest of its groups. None without a quota."""
    return min((quota for group in own_groups("cpu", root) for quota in _cpu_quota(group)), default=None)


def _memory_limit(group: Path) -> Iterator[MemoryLimit]:
    """At most one. Version 1 counts groups below only in `total_...`."""
    for most, current, prefix in (
        ("memory.max", "memory.current", ""),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        with contextlib.suppress(OSError, ValueError, KeyError):  # of the other version, or no limit: "max"
            limit, used = (int((group / name).read_text()) for name in (most, current))
            cached = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            yield MemoryLimit(limit, used - sum(int(cached[f"{prefix}{name}_file"]) for name in ("inactive", "active")))
            return


def _cpu_quota(group: Path) -> Iterator[float]:
    with contextlib.suppress(OSError, ValueError):
        quota, period = _quota_and_period(group)
        if quota > 0 and period > 0:
            yield quota / period


def _quota_and_period(group: Path) -> Tuple[int, int]:
    """Microseconds. Raises ValueError for "max" (version 2); in version 1, -1 means no quota."""
    if (group / "cpu.max").exists():
        quota, period = (group / "cpu.max").read_text().split()
        return int(quota), int(period)
    return int((group / "cpu.cfs_quota_us").read_text()), int((group / "cpu.cfs_period_us").read_text())
