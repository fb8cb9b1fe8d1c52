"""Whatever went wrong by Ray's state, one suspect each: failed tasks, dead processes, lost nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cloudrl.jobs.causes.evidence import Evidence, Row
from cloudrl.jobs.causes.signatures import Signature, recognise
from cloudrl.jobs.causes.tracebacks import Traceback, innermost
from cloudrl.verl.metrics import plain

_FAILED = (
    "TASK_EXECUTION_EXCEPTION", "RUNTIME_ENV_SETUP_FAILED", "OUT_OF_MEMORY", "OUT_OF_DISK_ERROR",
    "TASK_UNSCHEDULABLE_ERROR", "ACTOR_UNSCHEDULABLE_ERROR",
)  # fmt: skip
"""Ends of a task by itself (Ray 2.60, common.proto: ErrorType); the others follow from the end of something else."""
_CRASHES = ("SYSTEM_ERROR", "NODE_OUT_OF_MEMORY", "USER_ERROR")
"""Ends of a process that nobody wanted (Ray 2.60, common.proto: WorkerExitType)."""
_NEVER_STARTED = ("runtime_env_failed_context", "actor_unschedulable_context")
_GUESSES = " Some common causes include"
_POOLED = re.compile(r"\w{6}([A-Za-z]+_\d+:\d+)")
END_LINES, MOST_LINES = 60, 40


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

    @property
    def follows(self) -> str | None:
        """What its signature says of others; None where it may be the cause.

        A dead process is a cause, and an exception of another one that reports it is none.
        """
        follows = self.signature.follows if self.signature else None
        return None if follows == "report" and self.crashed else follows


def suspects_of_state(evidence: Evidence) -> list[Suspect]:
    """What Ray's state has of it, in no order."""
    return [*_tasks(evidence), *_workers(evidence), *_nodes(evidence), *_never_started(evidence)]


def process_name(actor: Row | None, fallback: str, pid: object) -> str:
    """For example `WorkerDict_0:1 (pid 42)`: verl's names begin with six letters of a pool that say nothing."""
    name = str((actor or {}).get("name") or "")
    pooled = _POOLED.fullmatch(name)
    shown = pooled[1] if pooled else name or str((actor or {}).get("class_name") or "").rpartition(".")[2] or fallback
    return f"{shown} (pid {pid})" if pid else shown


def _tasks(evidence: Evidence) -> Iterator[Suspect]:
    """Tasks that have failed, and not those that ended with their process, actor or node."""
    by_id = {task.get("task_id"): task for task in evidence.state.tasks}
    for task in evidence.state.tasks:
        if task.get("error_type") not in _FAILED:
            continue
        trace = innermost(str(task.get("error_message") or ""))
        name, depth = str(task.get("name") or "task"), _depth(task, by_id)
        yield raised(evidence, trace, task, name, at_ms=_ms(task.get("end_time_ms")), depth=depth)


def raised(
    evidence: Evidence, trace: Traceback, task: Row, name: str, *, at_ms: float | None, depth: int = 0
) -> Suspect:
    """An exception, in the process that its traceback names; else in that of the task."""
    actor_id = trace.actor_id or task.get("actor_id")
    actor = next((each for each in evidence.state.actors if actor_id and each.get("actor_id") == actor_id), None)
    pid = trace.pid or (actor or {}).get("pid") or task.get("worker_pid")
    place = (actor or {}).get("node_id") or task.get("node_id")
    rank = evidence.rank_of(place)
    signature = recognise("\n".join(trace.lines))
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


def _workers(evidence: Evidence) -> Iterator[Suspect]:
    """Dead processes of the job; those that Ray ended on purpose, and the driver, have no part in it."""
    of_tasks = {task.get("worker_id") for task in evidence.state.tasks}
    actors = {(actor.get("node_id"), actor.get("pid")): actor for actor in evidence.state.actors}
    for worker in evidence.state.workers:
        actor = actors.get((worker.get("node_id"), worker.get("pid")))
        is_ours = actor is not None or worker.get("worker_id") in of_tasks
        if worker.get("exit_type") in _CRASHES and worker.get("worker_type") != "DRIVER" and is_ours:
            yield _crash(evidence, worker, actor)


def _crash(evidence: Evidence, worker: Row, actor: Row | None) -> Suspect:
    """A process that died, in its own last words where it had any."""
    pid, rank = worker.get("pid"), evidence.rank_of(worker.get("node_id"))
    detail = str(worker.get("exit_detail") or worker.get("exit_type"))
    logs = evidence.logs_of(str(worker.get("worker_id") or ""), pid, rank)
    end = tuple(plain(line) for log in logs for line in log.lines[-END_LINES:] if line.strip())
    reason, own = recognise(detail), recognise("\n".join(end))
    if reason is not None and reason.follows is None:  # as of Ray's own monitor of memory
        own = None
    trace = innermost(detail)  # it has one where the actor's own start raised
    first = next(filter(str.strip, detail.partition(_GUESSES)[0].splitlines()), "no reason given")
    return Suspect(
        error=line_of(own, end) if own else trace.error or first,
        lines=(*end, *trace.lines)[-MOST_LINES:],
        at_ms=_ms(worker.get("end_time_ms")),
        rank=rank,
        process=process_name(actor, "worker", pid),
        actor_id=(actor or {}).get("actor_id"),
        crashed=True,
        signature=own or reason,
    )


def _nodes(evidence: Evidence) -> Iterator[Suspect]:
    """Nodes that Ray has lost; one that was drained has ended as it was told to."""
    for node in evidence.state.nodes:
        reason = str(node.get("state_message") or "no reason given")
        if node.get("state") == "DEAD" and not reason.startswith("Expected"):
            text = f"the node has died: {reason}"
            rank, at_ms = evidence.rank_of(node.get("node_id")), _ms(node.get("end_time_ms"))
            yield Suspect(text, (text,), at_ms, rank, "raylet", crashed=True, signature=recognise(text))


def _never_started(evidence: Evidence) -> Iterator[Suspect]:
    """Actors without a process: their environment could not be made, or no node has what they ask for."""
    for actor in evidence.state.actors:
        causes = actor.get("death_cause")
        for kind in _NEVER_STARTED:
            context = causes.get(kind) if isinstance(causes, dict) else None
            if isinstance(context, dict):
                trace = innermost(str(context.get("error_message") or kind))
                yield raised(evidence, trace, actor, "actor", at_ms=_ms(actor.get("end_time_ms")))


def line_of(signature: Signature | None, lines: Sequence[str]) -> str:
    """The line that a signature has found; the last one where it is found in none alone."""
    found = (line.strip() for line in lines if signature is not None and signature.pattern.search(line))
    return next(found, lines[-1].strip() if lines else "no reason given")


def _depth(task: Row, by_id: Mapping[object, Row]) -> int:
    seen: set[object] = set()
    while (parent := by_id.get(task.get("parent_task_id"))) is not None and parent.get("task_id") not in seen:
        seen.add(parent.get("task_id"))
        task = parent
    return len(seen)


def _ms(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None
