"""The first root cause among all that went wrong. Pure: the same evidence gives the same cause."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from cloudrl.logs.causes import unknown_keys
from cloudrl.logs.causes.budget import Budget
from cloudrl.logs.causes.cause import Cause, Finding, Sighting
from cloudrl.logs.causes.cluster_end import end_of_cluster
from cloudrl.logs.causes.command_end import bare_exit, last_words
from cloudrl.logs.causes.evidence import Evidence
from cloudrl.logs.causes.kernel_kills import by_kernel
from cloudrl.logs.causes.last_words import printed_by
from cloudrl.logs.causes.log_failures import DRIVER, chosen, failures
from cloudrl.logs.causes.log_suspects import suspect_of_driver, suspects_of_logs, suspects_seen_by_driver
from cloudrl.logs.causes.signatures import signatures
from cloudrl.logs.causes.suspect import SURVIVED_MS, Suspect, process_name
from cloudrl.logs.causes.suspects import suspects_of_state
from cloudrl.logs.causes.tracebacks import own_frame
from cloudrl.logs.sent_files import by_own_names

_SAME_MOMENT_MS = 1000
"""Clocks of nodes differ by as much, and the raylet sees a dead process later than the others do."""
_MOST_SIGHTINGS = 8
_END_LINES = 20


def find_cause(evidence: Evidence) -> Cause | None:
    """See `search`."""
    return search(evidence).cause


def search(evidence: Evidence, budget: Budget | None = None) -> Finding:
    """What a job failed of first.

    The order is that of Ray's state. What comes after the job's end is Ray tidying up. What follows from another
    failure is never a cause; ranks that waited in vain give away the one that they waited for. Within a second a
    process that died comes before an exception, and of tasks that called each other the innermost one first. Where the
    state is lost, or has only what follows from something else, the logs decide, by the times in them. A job that was
    still running went down with its cluster.

    Args:
        evidence: All that is left of the job.
        budget: How long it may take; 20 s for None. What is found by then is the answer.
    """
    budget = budget or Budget()
    driver = end_of_cluster(evidence) if evidence.was_running else suspect_of_driver(evidence, budget)
    end = evidence.ended_ms or math.inf
    of_state = [suspect for suspect in suspects_of_state(evidence, budget) if _at(suspect) <= end]
    suspects = of_state or [log for log in suspects_of_logs(evidence, budget) if _at(log) <= end]
    cause = _chosen(evidence, suspects, driver, has_state=bool(of_state), budget=budget)
    made = None if cause is None else _cause(_placed(cause, driver, suspects), suspects, evidence)
    return Finding(made, not budget.is_spent)


def _chosen(
    evidence: Evidence, suspects: Sequence[Suspect], driver: Suspect | None, *, has_state: bool, budget: Budget
) -> Suspect | None:
    leads = [suspect for suspect in suspects if suspect.is_lead]
    if driver is not None and driver.is_lead:
        leads = _not_survived([*leads, driver], driver)
    silent = sorted(
        (suspect for suspect in [*suspects, *filter(None, [driver])] if suspect.follows == "silence"), key=_at
    )
    if (first := _first(leads) or _awaited(evidence, silent, budget)) is not None:
        return first
    logs = suspects_of_logs(evidence, budget) if has_state else list(suspects)
    seen = suspects_seen_by_driver(evidence, budget)
    silent = silent or [suspect for suspect in [*logs, *seen] if suspect.follows == "silence"]
    others = [*suspects, *filter(None, [driver]), *logs, *seen]
    return (
        _first([log for log in logs if log.is_lead])
        or next((suspect for suspect in seen if suspect.is_lead), None)
        or end_of_cluster(evidence)
        or last_words(evidence)
        or min((other for other in others if other.is_vague), key=_row, default=None)
        or next((other for other in others if other.only_logged and other.follows is None), None)
        or (replace(silent[0], rank=None, process="", actor_id=None) if silent else None)
        or (bare_exit(evidence) if not any(other.follows for other in others) else None)
    )


def _row(suspect: Suspect) -> int:
    """Where its signature is in the table, which has what is particular before what is general."""
    return signatures().index(suspect.signature) if suspect.signature is not None else len(signatures())


def _first(leads: Sequence[Suspect]) -> Suspect | None:
    moment = min(map(_at, leads), default=math.inf) + _SAME_MOMENT_MS
    same = [lead for lead in leads if _at(lead) <= moment]
    return min(same, key=_order, default=None)


def _order(suspect: Suspect) -> tuple[bool, float, int, int, str]:
    """What comes first within a second; by rank and process where nothing else tells them apart."""
    rank = -1 if suspect.rank is None else suspect.rank
    return not suspect.crashed, _at(suspect), -suspect.depth, rank, suspect.process


def _not_survived(leads: Sequence[Suspect], driver: Suspect) -> list[Suspect]:
    """Without what went wrong long before the failure that ended the job."""
    last = min(_at(lead) for lead in leads if lead.error == driver.error)
    return [lead for lead in leads if not _at(lead) < last - SURVIVED_MS]


def _placed(chosen: Suspect, driver: Suspect | None, suspects: Sequence[Suspect]) -> Suspect:
    """In the process in which the driver says that its own error was raised, where Ray has no failure of that one.

    A process that ends at once takes along what Ray has not heard yet; what Ray has is the task that passed it on.
    """
    if (
        driver is None
        or driver.error != chosen.error
        or driver.process in {DRIVER, *(suspect.process for suspect in suspects)}
    ):
        return chosen
    return replace(chosen, rank=driver.rank, process=driver.process)


def _awaited(evidence: Evidence, silent: Sequence[Suspect], budget: Budget) -> Suspect | None:
    """The process for which others have waited in vain, and what it said; None where all of them have waited."""
    ids = {suspect.actor_id for suspect in silent}
    classes = {actor.get("class_name") for actor in evidence.state.actors if actor.get("actor_id") in ids}
    for actor in budget.take(evidence.state.actors):
        if actor.get("class_name") in classes and actor.get("actor_id") not in ids:
            pid, rank = actor.get("pid"), evidence.rank_of(actor.get("node_id"))
            name, logs = process_name(actor, "worker", pid), printed_by(evidence, "", pid, rank)
            own = chosen([suspect for log, stream in logs for _, suspect in failures(evidence, log, stream, budget)])
            if own is not None and own.is_lead:
                return replace(own, rank=rank, process=name)
            last_lines = [line.text for _, stream in logs for line in stream.lines[-_END_LINES:]]
            error = f"{name} did not come while the others waited for it: {silent[0].error}"
            return replace(silent[0], error=error, lines=tuple(last_lines), rank=rank, process=name, actor_id=None)
    return None


def _cause(chosen: Suspect, suspects: Sequence[Suspect], evidence: Evidence) -> Cause:
    chosen = by_kernel(evidence, chosen)
    signature = chosen.signature
    is_key = signature is not None and signature.name == unknown_keys.SIGNATURE
    code, call = own_frame(chosen.lines)
    own = unknown_keys.remedy_of(chosen.lines, evidence.state.job) if is_key else None
    return Cause(
        error=by_own_names(chosen.error),
        at=_seconds(chosen),
        rank=chosen.rank,
        process=chosen.process,
        signature=signature.name if signature else None,
        meaning=signature.cause if signature else "",
        remedy=own or (signature.remedy if signature else ""),
        lines=tuple(map(by_own_names, chosen.lines)),
        code=code,
        call=call,
        elsewhere=_sightings(chosen, suspects),
    )


def _sightings(chosen: Suspect, suspects: Sequence[Suspect]) -> tuple[Sighting, ...]:
    """What other processes said in that second, without tasks that only repeat the error of one that they called."""
    others = [
        suspect
        for suspect in sorted(suspects, key=_at)
        if abs(_at(suspect) - _at(chosen)) <= _SAME_MOMENT_MS
        and (suspect.rank, suspect.process) != (chosen.rank, chosen.process)
        and (suspect.error != chosen.error or suspect.depth >= chosen.depth)
    ]
    return tuple(
        Sighting(other.error, _seconds(other), other.rank, other.process) for other in others[:_MOST_SIGHTINGS]
    )


def _at(suspect: Suspect) -> float:
    return suspect.at_ms if suspect.at_ms is not None else math.inf


def _seconds(suspect: Suspect) -> float | None:
    return suspect.at_ms / 1000 if suspect.at_ms is not None else None
