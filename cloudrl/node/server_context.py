"""What the agent's HTTP may show, and how it says no."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional

from cloudrl.node.budget import Transfers

if TYPE_CHECKING:
    from pathlib import Path

    from cloudrl.node.checkpoint_store import CheckpointStore
    from cloudrl.node.node_state import NodeState
    from cloudrl.node.peer import Peer
    from cloudrl.node.replication import ReplicationHub
    from cloudrl.node.report import Report


class HttpError(Exception):
    """Answer with this status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class ServerContext:
    """What the server may show.

    Attributes:
        agent_log: this node's own log.
        job_logs: folder of Ray's job logs, None while Ray is not up or on a worker.
        checkpoint_store: this node's checkpoints.
        transfers: told of all that moves files, so that the cluster does not count as idle meanwhile.
    """

    state: NodeState
    nodes: int
    token: str
    status: Callable[[], Dict[str, Any]]
    peer: Callable[[Report], Peer]
    agent_log: Path
    job_logs: Callable[[], Optional[Path]]
    checkpoint_store: CheckpointStore
    data_dir: Path
    replication: ReplicationHub
    transfers: Transfers = field(default_factory=Transfers)
