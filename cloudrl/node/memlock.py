"""How much memory processes of this node may lock, where InfiniBand needs it: a card reads and writes locked pages.

NCCL registers its buffers with the card; above the limit the kernel refuses (drivers/infiniband/core/umem.c: ENOMEM),
and NCCL ends the job with `Call to ibv_reg_mr failed`. Slurm hands on the soft limit of the shell that sbatch was typed
in, unless the site says otherwise (slurm.conf(5): PropagateResourceLimits).
"""

import contextlib
import resource
from pathlib import Path
from typing import List, Mapping, Optional

from cloudrl.protocol.report import NodeWarning

_ENOUGH_BYTES = 1024**3
"""NCCL takes 4 MiB a channel and peer (docs: NCCL_BUFFSIZE): with 32 channels and 8 peers. Common limits are 64 KiB and
8 MiB, or none."""
_CAP_IPC_LOCK = 14  # linux/capability.h: the limit does not hold for who has it
_ALL_USERS = ["0", "0", "4294967295"]


def locked_memory_limit(env: Mapping[str, str], root: Path = Path("/")) -> Optional[int]:
    """Bytes that a process may lock, after the soft limit was raised as far as it may go.

    Args:
        env: of the agent; NCCL_IB_DISABLE=1 keeps NCCL from InfiniBand.
        root: where `proc` and `sys` are.

    Returns:
        None without a limit, and where NCCL uses no InfiniBand.
    """
    if env.get("NCCL_IB_DISABLE", "0") not in ("", "0") or not _has_active_port(root) or _may_lock_all(root):
        return None
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid it
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def too_little_locked_memory(limit_bytes: Optional[int]) -> List[NodeWarning]:
    """A warning where NCCL over InfiniBand is likely to fail.

    Args:
        limit_bytes: of `locked_memory_limit`.
    """
    if limit_bytes is None or limit_bytes >= _ENOUGH_BYTES:
        return []
    said = f"`ulimit -l` is {limit_bytes // 1024} KiB and cannot be raised"
    danger = "NCCL locks more for InfiniBand, and fails with `ibv_reg_mr failed`"
    remedy = "start slurmd with LimitMEMLOCK=infinity, docker with --ulimit memlock=-1; or --env NCCL_IB_DISABLE=1"
    return [NodeWarning(f"{said}: {danger}", remedy)]


def _has_active_port(root: Path) -> bool:
    for state in (root / "sys/class/infiniband").glob("*/ports/*/state"):
        with contextlib.suppress(OSError):
            if "ACTIVE" in state.read_text():
                return True
    return False


def _may_lock_all(root: Path) -> bool:
    """Whether it has the right of the machine's root; that of a user namespace does not count."""
    try:
        users = (root / "proc/self/uid_map").read_text().split()
        status = dict(line.split(":", 1) for line in (root / "proc/self/status").read_text().splitlines())
        return users == _ALL_USERS and bool(int(status["CapEff"], 16) >> _CAP_IPC_LOCK & 1)
    except (OSError, ValueError, KeyError):
        return False
