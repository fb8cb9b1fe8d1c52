"""Which node this is: one small mapping from the variables of dstack, Slurm and cloudrl itself.

Sources: dstack 0.22 `runner` (DSTACK_*, see its docs "Distributed tasks"); sbatch(1) and srun(1) (SLURM_*).
Slurm does not say the head's IP; the job script exports CLOUDRL_HEAD_IP.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Mapping, Optional

from cloudrl.errors import InputError

_NAMES = {
    # ours            dstack                    Slurm
    "provider": ("CLOUDRL_PROVIDER", None, None),
    "name": ("CLOUDRL_CLUSTER", "DSTACK_RUN_NAME", "SLURM_JOB_NAME"),
    "run_id": ("CLOUDRL_RUN_ID", "DSTACK_RUN_ID", "SLURM_JOB_ID"),
    "rank": ("CLOUDRL_NODE_RANK", "DSTACK_NODE_RANK", "SLURM_NODEID"),
    "nodes": ("CLOUDRL_NODES_NUM", "DSTACK_NODES_NUM", "SLURM_JOB_NUM_NODES"),
    "head_ip": ("CLOUDRL_HEAD_IP", "DSTACK_MASTER_NODE_IP", None),
    "ip": ("CLOUDRL_NODE_IP", None, None),
    "gpus_per_node": ("CLOUDRL_GPUS_PER_NODE", "DSTACK_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
}


@dataclass(frozen=True)
class Identity:
    """This node's place in its cluster.

    Attributes:
        provider: "local", "dstack" or "slurm".
        name: the cluster's name.
        run_id: the same on all nodes and over retries of one run.
        rank: 0 for the head.
        nodes: how many nodes the cluster has.
        head_ip: IPv4 address of rank 0 in the cluster's network.
        ip: this node's address in that network.
        gpus_per_node: what the provider says it gave, if it says so.
    """

    provider: str
    name: str
    run_id: str
    rank: int
    nodes: int
    head_ip: str
    ip: str
    gpus_per_node: Optional[int]

    @property
    def is_head(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0


def read_identity(env: Mapping[str, str]) -> Identity:
    """Read this node's identity from its environment.

    Raises:
        InputError: a number is none, the rank does not fit the node count, or several nodes have no head IP.
    """
    provider = _first(env, "provider") or _guess_provider(env)
    rank, nodes = _number(env, "rank", 0), _number(env, "nodes", 1)
    if not 0 <= rank < nodes:
        raise InputError(f"rank {rank} does not fit a cluster of {nodes} nodes")
    head_ip = _first(env, "head_ip") or ""
    if not head_ip and nodes > 1:
        raise InputError(
            f"a cluster of {nodes} nodes, and no address of rank 0",
            hint="export CLOUDRL_HEAD_IP=<IPv4 address of rank 0>",
        )
    head_ip = head_ip or address_towards("192.0.2.1")
    ip = _first(env, "ip") or (head_ip if rank == 0 else address_towards(head_ip))
    return Identity(
        provider=provider,
        name=_first(env, "name") or "ray-cluster",
        run_id=_first(env, "run_id") or "0",
        rank=rank,
        nodes=nodes,
        head_ip=head_ip,
        ip=ip,
        gpus_per_node=_number(env, "gpus_per_node", None),
    )


def _guess_provider(env: Mapping[str, str]) -> str:
    if "DSTACK_RUN_NAME" in env:
        return "dstack"
    return "slurm" if "SLURM_JOB_ID" in env else "local"


def _first(env: Mapping[str, str], field: str) -> Optional[str]:
    for name in _NAMES[field]:
        if name and env.get(name):
            return env[name]
    return None


def _number(env: Mapping[str, str], field: str, default: Optional[int]) -> int:
    text = _first(env, field)
    if text is None:
        return default  # type: ignore[return-value]  # the caller knows whether None may come back
    try:
        return int(text)
    except ValueError:
        names = "/".join(name for name in _NAMES[field] if name)
        raise InputError(f"{names} should be a number and is {text!r}") from None


def address_towards(ip: str) -> str:
    """The IPv4 address from which this machine would talk to `ip`. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ip, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
