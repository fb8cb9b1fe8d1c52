"""Which node this is: one small mapping from the variables of dstack, Slurm and cloudrl itself.

Sources: dstack 0.22 `runner` (DSTACK_*, see its docs "Distributed tasks"); sbatch(1) and srun(1) (SLURM_*).
Slurm does not say the head's IP; the job script exports CLOUDRL_HEAD_IP.
"""

import socket
from dataclasses import dataclass
from typing import List, Mapping, Optional

from cloudrl.errors import InputError

_OWN = {
    "provider": "CLOUDRL_PROVIDER", "name": "CLOUDRL_CLUSTER", "run_id": "CLOUDRL_RUN_ID",
    "rank": "CLOUDRL_NODE_RANK", "nodes": "CLOUDRL_NODES_NUM", "head_ip": "CLOUDRL_HEAD_IP", "ip": "CLOUDRL_NODE_IP",
    "gpus_per_node": "CLOUDRL_GPUS_PER_NODE",
}  # fmt: skip
"""Field -> our own variable, which wins over those of any provider."""
_OF_PROVIDERS = {
    "dstack": {
        "name": "DSTACK_RUN_NAME", "run_id": "DSTACK_RUN_ID", "rank": "DSTACK_NODE_RANK", "nodes": "DSTACK_NODES_NUM",
        "head_ip": "DSTACK_MASTER_NODE_IP", "gpus_per_node": "DSTACK_GPUS_PER_NODE",
    },
    "slurm": {
        "name": "SLURM_JOB_NAME", "run_id": "SLURM_JOB_ID", "rank": "SLURM_NODEID", "nodes": "SLURM_JOB_NUM_NODES",
        "gpus_per_node": "SLURM_GPUS_ON_NODE",
    },
}  # fmt: skip
"""Provider -> field -> its variable. Whose run id is there is the provider, unless we say another one."""


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
        InputError: a number is not valid, the rank does not fit the node count, or several nodes have no head IP.
    """
    provider = next((name for name, names in _OF_PROVIDERS.items() if names["run_id"] in env), "local")
    rank, nodes = _number(env, "rank", 0), _number(env, "nodes", 1)
    if not 0 <= rank < nodes:
        raise InputError(f"rank {rank} does not fit a cluster of {nodes} nodes")
    head_ip = _first(env, "head_ip") or ""
    if not head_ip and nodes > 1:
        raise InputError(
            f"a cluster of {nodes} nodes, and no address of rank 0",
            hint="export CLOUDRL_HEAD_IP=<IPv4 address of rank 0>",
        )
    if nodes == 1 and not _is_local(head_ip):
        head_ip = ""  # the host's, which a container on bridge networking does not have
    head_ip = head_ip or address_towards("192.0.2.1")
    ip = _first(env, "ip") or (head_ip if rank == 0 else address_towards(head_ip))
    return Identity(
        provider=_first(env, "provider") or provider,
        name=_first(env, "name") or "ray-cluster",
        run_id=_first(env, "run_id") or "0",
        rank=rank,
        nodes=nodes,
        head_ip=head_ip,
        ip=ip,
        gpus_per_node=_number(env, "gpus_per_node", 0) if _first(env, "gpus_per_node") else None,
    )


def _variables(field: str) -> List[str]:
    return [names[field] for names in (_OWN, *_OF_PROVIDERS.values()) if field in names]


def _first(env: Mapping[str, str], field: str) -> Optional[str]:
    return next((env[name] for name in _variables(field) if env.get(name)), None)


def _number(env: Mapping[str, str], field: str, default: int) -> int:
    text = _first(env, field)
    try:
        return default if text is None else int(text)
    except ValueError:
        names = "/".join(_variables(field))
        raise InputError(f"{names} should be a number and is {text!r}") from None


def _is_local(ip: str) -> bool:
    """Whether an interface of this node has the address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((ip, 0))
        except OSError:
            return False
    return True


def address_towards(ip: str) -> str:
    """The IPv4 address from which this machine would talk to `ip`. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ip, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
