"""What the agent's HTTP may show, and how it says no."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional

from cloudrl.node.money import Transfers

if TYPE_CHECKING:
    from pathlib import Path

    from cloudrl.node.board import Board
    from cloudrl.node.peer import Peer
    from cloudrl.node.report import Report
    from cloudrl.node.shelf import Shelf
    from cloudrl.node.shipping import Shipping


class HttpError(Exception):
    """Answer with this status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Rooms:
    """What the server may show.

    Attributes:
        agent_log: this node's own log.
        job_logs: folder of Ray's job logs, None while Ray is not up or on a worker.
        shelf: this node's checkpoints.
        transfers: told of all that moves files, so that the cluster does not count as idle meanwhile.
    """

    board: Board
    nodes: int
    token: str
    status: Callable[[], Dict[str, Any]]
    peer: Callable[[Report], Peer]
    agent_log: Path
    job_logs: Callable[[], Optional[Path]]
    shelf: Shelf
    data_dir: Path
    shipping: Shipping
    transfers: Transfers = field(default_factory=Transfers)
