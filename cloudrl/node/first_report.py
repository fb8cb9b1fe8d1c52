"""What a node says of itself before its first phase."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from cloudrl.node import attempts, budget
from cloudrl.protocol.report import NodeReport

if TYPE_CHECKING:
    from cloudrl.node.identity import Identity
    from cloudrl.protocol.options import AgentOptions


def first_report(identity: Identity, options: AgentOptions, gpus: int) -> NodeReport:
    """Who it is, and what its volume remembers of earlier attempts."""
    folder, run_id = options.checkpoints, identity.run_id
    return NodeReport(
        rank=identity.rank, ip=identity.ip, hostname=socket.gethostname(), agent_port=options.ports.agent, gpus=gpus,
        cost_before=budget.read_cost(folder, run_id), known_failures=attempts.known_failures(folder, run_id),
    )  # fmt: skip
