"""Something that went wrong, and where: what the finder chooses from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cloudrl.logs.causes.evidence import Evidence, Row
from cloudrl.logs.causes.signatures import Signature, recognise
from cloudrl.logs.causes.tracebacks import Traceback, without_code

MOST_LINES = 40
SURVIVED_MS = 60_000
"""What went wrong so long before the failure that ended a process, the process has coped with."""
_POOLED = re.compile(r"\w{6}([A-Za-z]+_\d+:\d+)")


@dataclass(frozen=True)
class Suspect:
    """Something that went wrong.

    Attributes:
        error: one line.
        lines: what is shown of it.
        at_ms: when; None where nothing says so.
        rank: of the node.
        process: on that node.
        actor_id: of the actor in it.
        crashed: whether a process or a node has ended; else an exception was raised.
        depth: how many tasks of the job had it called; the deepest of equal ones is the one that has failed itself.
        signature: that knows it.
        only_logged: whether nothing was raised and no process ended: a logger's level alone says that it went wrong.
    """

    error: str
    lines: tuple[str, ...]
    at_ms: float | None = None
    rank: int | None = None
    process: str = ""
    actor_id: str | None = None
    crashed: bool = False
    depth: int = 0
    signature: Signature | None = None
    only_logged: bool = False

    @property
    def follows(self) -> str | None:
        """What its signature says of others; None where it may be the cause.

        A dead process is a cause, and an exception by which another process reports it is not.
        """
        follows = self.signature.follows if self.signature else None
        return None if follows == "report" and self.crashed else follows

    @property
    def is_lead(self) -> bool:
        """Whether it may be the cause whatever else is found."""
        return self.follows is None and not self.is_vague and not self.only_logged

    @property
    def is_vague(self) -> bool:
        """Whether it is the cause only where nothing else is known."""
        return self.signature is not None and self.signature.is_vague


def raised(
    evidence: Evidence, trace: Traceback, task: Row, name: str, *, at_ms: float | None, depth: int = 0
) -> Suspect:
    """An exception, in the process that its traceback names; else in that of the task."""
    actor_id = trace.actor_id or task.get("actor_id")
    actor = next((row for row in evidence.state.actors if actor_id and row.get("actor_id") == actor_id), None)
    pid = trace.pid or (actor or {}).get("pid") or task.get("worker_pid")
    place = (actor or {}).get("node_id") or task.get("node_id")
    rank = evidence.rank_of(place)
    signature = known(trace.lines, trace.error)
    return Suspect(
        error=trace.error or line_of(signature, trace.lines),
        lines=trace.lines[-MOST_LINES:],
        at_ms=at_ms,
        rank=rank if rank is not None else evidence.rank_of_process(trace.ip, pid),
        process=process_name(actor, trace.task or name, pid),
        actor_id=actor_id,
        depth=depth,
        signature=signature,
    )


def known(lines: Sequence[str], error: str | None) -> Signature | None:
    """The signature of a failure by its lines, without the code that they quote."""
    return recognise("\n".join([*without_code(lines), error or ""]))


def line_of(signature: Signature | None, lines: Sequence[str]) -> str:
    """The line that a signature has found; the last one where it is found in none alone."""
    matching = (line.strip() for line in lines if signature is not None and signature.pattern.search(line))
    return next(matching, lines[-1].strip() if lines else "no reason given")


def process_name(actor: Row | None, fallback: str, pid: object) -> str:
    """For example `WorkerDict_0:1 (pid 42)`: verl's names begin with six letters of a pool that say nothing."""
    name = str((actor or {}).get("name") or "")
    pooled = _POOLED.fullmatch(name)
    shown = pooled[1] if pooled else name or str((actor or {}).get("class_name") or "").rpartition(".")[2] or fallback
    return f"{shown} (pid {pid})" if pid else shown
