"""Processes that wait for a debugger, as the agents of their nodes tell it."""

from dataclasses import dataclass
from typing import Optional

DEBUGPY, PDB = "debugpy", "pdb"
"""The two debuggers: Ray's distributed one speaks DAP, its legacy one is pdb as text."""


@dataclass(frozen=True)
class Stop:
    """A process that waits for a debugger.

    Attributes:
        id: of this stop; when the same process stops again, it has another.
        node: rank of its node.
        port: where its debugger listens on that node, on loopback.
        debugger: `DEBUGPY` or `PDB`.
        job: submission id, "" where it is not known.
        actor: its class, such as "WorkerDict", or "driver" or "task".
        rank: in training, of verl's workers; None elsewhere.
        method: function in which it stands.
        file, line: where that is.
        cwd: of the process; relative paths of a client's folder belong there.
        reason: "breakpoint", or the error of a post-mortem, such as "ValueError: no answer".
        since: seconds since the epoch.
        attached: whether a client is connected at this moment.
    """

    id: str
    node: int
    pid: int
    port: int
    debugger: str = DEBUGPY
    job: str = ""
    actor: str = ""
    rank: Optional[int] = None
    method: str = ""
    file: str = ""
    line: int = 0
    cwd: str = ""
    reason: str = "breakpoint"
    since: float = 0.0
    attached: bool = False
