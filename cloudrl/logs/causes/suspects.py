"""Whatever went wrong by Ray's state, one suspect each: failed tasks, dead processes, lost nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from cloudrl.logs.causes.budget import Budget
from cloudrl.logs.causes.evidence import Evidence, Row
from cloudrl.logs.causes.last_words import Dead, death, printed_by
from cloudrl.logs.causes.printed import shortened
from cloudrl.logs.causes.signatures import recognise
from cloudrl.logs.causes.suspect import MOST_LINES, Suspect, process_name, raised
from cloudrl.logs.causes.tracebacks import innermost

_FAILED = (
    "TASK_EXECUTION_EXCEPTION", "RUNTIME_ENV_SETUP_FAILED", "OUT_OF_MEMORY", "OUT_OF_DISK_ERROR",
    "TASK_UNSCHEDULABLE_ERROR", "ACTOR_UNSCHEDULABLE_ERROR",
)  # fmt: skip
"""Ends of a task by itself (Ray 2.60, common.proto: ErrorType); the others follow from the end of something else."""
_CRASHES = ("SYSTEM_ERROR", "NODE_OUT_OF_MEMORY", "USER_ERROR")
"""Unwanted ends of a process (Ray 2.60, common.proto: WorkerExitType)."""
_ENDED_BY_RAY = ("OWNER_DIED", "RAY_KILL", "OUT_OF_SCOPE", "REF_DELETED")
"""Ends of an actor that Ray decided on before its process ended (Ray 2.60, common.proto: ActorDiedErrorContext)."""
_NEVER_STARTED = ("runtime_env_failed_context", "actor_unschedulable_context")


def suspects_of_state(evidence: Evidence, budget: Budget) -> list[Suspect]:
    """What Ray's state has of it, in no order."""
    tasks, workers = _tasks(evidence, budget), _workers(evidence, budget)
    return [*tasks, *workers, *_nodes(evidence), *_never_started(evidence)]


def _tasks(evidence: Evidence, budget: Budget) -> Iterator[Suspect]:
    """Tasks that have failed, and not those that ended with their process, actor or node."""
    by_id = {task.get("task_id"): task for task in evidence.state.tasks}
    for task in budget.take(evidence.state.tasks):
        if task.get("error_type") not in _FAILED:
            continue
        trace = innermost(str(task.get("error_message") or ""))
        name, depth = str(task.get("name") or "task"), _depth(task, by_id)
        yield raised(evidence, trace, task, name, at_ms=_ms(task.get("end_time_ms")), depth=depth)


def _workers(evidence: Evidence, budget: Budget) -> Iterator[Suspect]:
    """Dead processes of the job, without the driver and without those that Ray ended on purpose.

    A busy machine can make the second kind look like a crash: Ray kills a process that is slow to exit, and reports
    the closed connection.
    """
    of_tasks = {task.get("worker_id") for task in evidence.state.tasks}
    actors = {(actor.get("node_id"), actor.get("pid")): actor for actor in evidence.state.actors}
    for worker in budget.take(evidence.state.workers):
        actor = actors.get((worker.get("node_id"), worker.get("pid")))
        is_ours = actor is not None or worker.get("worker_id") in of_tasks
        is_crash = worker.get("exit_type") in _CRASHES and not _was_ended_by_ray(actor)
        if is_crash and worker.get("worker_type") != "DRIVER" and is_ours:
            yield _crash(evidence, worker, actor, budget)


def _was_ended_by_ray(actor: Row | None) -> bool:
    causes = (actor or {}).get("death_cause")
    context = causes.get("actor_died_error_context") if isinstance(causes, dict) else None
    return isinstance(context, dict) and context.get("reason") in _ENDED_BY_RAY


def _crash(evidence: Evidence, worker: Row, actor: Row | None, budget: Budget) -> Suspect:
    pid, rank = worker.get("pid"), evidence.rank_of(worker.get("node_id"))
    exit_type, detail = worker.get("exit_type"), str(worker.get("exit_detail") or worker.get("exit_type"))
    dead = Dead(
        process=process_name(actor, "worker", pid),
        detail=detail,
        streams=printed_by(evidence, str(worker.get("worker_id") or ""), pid, rank),
        rank=rank,
        actor_id=(actor or {}).get("actor_id"),
        at_ms=_ms(worker.get("end_time_ms")),
    )
    suspect = death(evidence, dead, budget)
    report = f"Worker exit type: {exit_type} Worker exit detail: {detail.splitlines()[0]}"
    return replace(suspect, lines=(*suspect.lines, shortened(report))[-MOST_LINES:])


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


def _depth(task: Row, by_id: Mapping[object, Row]) -> int:
    seen: set[object] = set()
    while (parent := by_id.get(task.get("parent_task_id"))) is not None and parent.get("task_id") not in seen:
        seen.add(parent.get("task_id"))
        task = parent
    return len(seen)


def _ms(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None
