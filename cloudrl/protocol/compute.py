"""What a node's check of its GPUs has found, and how the nodes meet to compute together."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Optional, Tuple

SWITCH = "CLOUDRL_GANG_CHECK"
"""A variable of the nodes: "off" where the check that they compute together is wrong and training would work."""
GPU_SWITCH = "CLOUDRL_GPU_CHECK"
"""The same for each GPU by itself; without that the nodes are not tried together either."""


class ComputeStep(str, enum.Enum):
    """How far a check is, in this order."""

    IMPORT = "import"
    COMPUTE = "compute"
    """A matrix product on each GPU, and a copy to the next one."""
    READY = "ready"
    """Computes by itself, and waits for the other nodes."""
    CONNECT = "connect"
    """Tries to reach each of them."""
    EXCHANGE = "exchange"
    """Collectives of all ranks."""
    DONE = "done"

    @classmethod
    def _missing_(cls, value: object) -> ComputeStep:  # noqa: ARG003  enum's own name for it
        return cls.IMPORT

    def __str__(self) -> str:
        return self.value

    @property
    def number(self) -> int:
        """Its place in the order."""
        return list(ComputeStep).index(self)


@dataclass(frozen=True)
class NodeCheck:
    """The check of one node.

    Attributes:
        step: of the slowest of its processes.
        processes: that take part in collectives, one a GPU; 0 where the nodes are not tried together.
        port: at which this node can be reached, of those that the system hands out.
        error: why it does not compute, or not with the others.
        lost: GPUs whose process has ended early, or gives no sign of life.
        tflops: of each GPU, in the matrix product, TFLOP/s.
        received_gb_per_s: from the rank before it, 10**9 bytes a second; None where that was not measured.
        unreachable: ranks whose port it cannot reach.
    """

    step: ComputeStep = ComputeStep.IMPORT
    processes: int = 0
    port: int = 0
    error: str = ""
    lost: Tuple[int, ...] = ()
    tflops: Tuple[float, ...] = ()
    received_gb_per_s: Optional[float] = None
    unreachable: Tuple[int, ...] = ()


@dataclass(frozen=True)
class Member:
    """A node whose processes take part in collectives, and where it is reached."""

    rank: int
    ip: str
    port: int
    processes: int


@dataclass(frozen=True)
class Rendezvous:
    """Who computes together, in the order of ranks. The first keeps the store of torch's process group."""

    members: Tuple[Member, ...] = ()

    def before(self, rank: int) -> Optional[int]:
        """The rank from which a rank receives; None for a rank that takes no part."""
        ranks = [member.rank for member in self.members]
        return ranks[ranks.index(rank) - 1] if rank in ranks else None
