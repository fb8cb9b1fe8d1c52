"""What the agent's HTTP may show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable, Optional

from cloudrl.node.budget import Transfers
from cloudrl.protocol.client import LISTING_TIMEOUT_S, AgentClient

if TYPE_CHECKING:
    from pathlib import Path

    from cloudrl.node.checkpoint_store import CheckpointStore
    from cloudrl.node.node_state import NodeState
    from cloudrl.node.replication import ReplicationHub
    from cloudrl.protocol.report import ClusterStatus, NodeReport


@dataclass(frozen=True)
class ServerContext:
    """What the server may show.

    Attributes:
        client: the agent of another rank, to which a client's call is passed on.
        agent_log: this node's own log.
        job_logs: folder of Ray's job logs, None while Ray is not up or on a worker.
        transfers: told of all that moves files, so that the cluster does not count as idle meanwhile.
    """

    state: NodeState
    nodes: int
    token: str
    status: Callable[[], ClusterStatus]
    client: Callable[[NodeReport], AgentClient]
    agent_log: Path
    job_logs: Callable[[], Optional[Path]]
    checkpoint_store: CheckpointStore
    data_dir: Path
    replication: ReplicationHub
    transfers: Transfers = field(default_factory=Transfers)


def client_of(token: str, report: NodeReport) -> AgentClient:
    """The agent that a client's call is passed on to: it waits as long as clients do for a listing."""
    return AgentClient(f"http://{report.ip}:{report.agent_port}", token, timeout_s=LISTING_TIMEOUT_S)
