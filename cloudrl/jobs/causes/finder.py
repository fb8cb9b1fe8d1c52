"""The first root cause among all that went wrong. Pure: the same evidence gives the same cause."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from cloudrl.jobs.causes.cause import Cause, Sighting
from cloudrl.jobs.causes.evidence import Evidence
from cloudrl.jobs.causes.log_suspects import DRIVER, seen_by_driver, suspect_of_driver, suspects_of_logs
from cloudrl.jobs.causes.suspects import Suspect, process_name, suspects_of_state

_SAME_MOMENT_MS = 1000
"""Clocks of nodes differ by as much, and the raylet sees a dead process later than the others do."""
_SURVIVED_MS = 60_000
"""An error that the driver did not end with, so long before the one that it did end with, was coped with."""
_MOST_SIGHTINGS = 8
_END_LINES = 20


def find_cause(evidence: Evidence) -> Cause | None:
    """What a job failed of first; None where nothing is left that says so, or only what follows from something else.

    The order is that of Ray's state. What comes after the job's end is Ray tidying up. What follows from another
    failure is never a cause; ranks that waited in vain give away the one that they waited for. Within a second a
    process that died comes before an exception, and of tasks that called each other the innermost one first. Where the
    state is lost, the times in the logs decide.
    """
    driver, found = suspect_of_driver(evidence), suspects_of_state(evidence)
    end = evidence.ended_ms or math.inf
    found = [each for each in found or suspects_of_logs(evidence) if _at(each) <= end]
    leads = [each for each in found if each.follows is None]
    if driver is not None and driver.follows is None:
        leads = _not_survived([*leads, driver], driver)
    chosen = _first(leads) or _awaited(evidence, [*found, *filter(None, [driver])]) or seen_by_driver(evidence)
    return None if chosen is None else _cause(_placed(chosen, driver, found), found)


def _first(leads: Sequence[Suspect]) -> Suspect | None:
    moment = min(map(_at, leads), default=math.inf) + _SAME_MOMENT_MS
    same = [each for each in leads if _at(each) <= moment]
    return min(same, key=_order, default=None)


def _order(suspect: Suspect) -> tuple[bool, float, int, int, str]:
    """What comes first within a second; by rank and process where nothing else tells them apart."""
    rank = -1 if suspect.rank is None else suspect.rank
    return not suspect.crashed, _at(suspect), -suspect.depth, rank, suspect.process


def _not_survived(leads: Sequence[Suspect], driver: Suspect) -> list[Suspect]:
    """Without what went wrong long before the failure that ended the job."""
    last = min(_at(each) for each in leads if each.error == driver.error)
    return [each for each in leads if not _at(each) < last - _SURVIVED_MS]


def _placed(chosen: Suspect, driver: Suspect | None, found: Sequence[Suspect]) -> Suspect:
    """In the process in which the driver says that its own error was raised, where Ray has no failure of that one.

    A process that ends at once takes along what Ray has not heard yet; what Ray has is the task that passed it on.
    """
    if driver is None or driver.error != chosen.error or driver.process in {DRIVER, *(each.process for each in found)}:
        return chosen
    return replace(chosen, rank=driver.rank, process=driver.process)


def _awaited(evidence: Evidence, found: Sequence[Suspect]) -> Suspect | None:
    """The process for which others have waited in vain; without a rank where all of them have waited."""
    waited = sorted((each for each in found if each.follows == "silence"), key=_at)
    if not waited:
        return None
    ids = {each.actor_id for each in waited}
    classes = {actor.get("class_name") for actor in evidence.state.actors if actor.get("actor_id") in ids}
    for actor in evidence.state.actors:
        if actor.get("class_name") in classes and actor.get("actor_id") not in ids:
            pid, rank = actor.get("pid"), evidence.rank_of(actor.get("node_id"))
            name = process_name(actor, "worker", pid)
            said = [line for log in evidence.logs_of(None, pid, rank) for line in log.lines[-_END_LINES:]]
            error = f"{name} did not come while the others waited for it: {waited[0].error}"
            return replace(waited[0], error=error, lines=tuple(said), rank=rank, process=name, actor_id=None)
    return replace(waited[0], rank=None, process="", actor_id=None)


def _cause(chosen: Suspect, found: Sequence[Suspect]) -> Cause:
    signature = chosen.signature
    return Cause(
        error=chosen.error,
        at=_seconds(chosen),
        rank=chosen.rank,
        process=chosen.process,
        signature=signature.name if signature else None,
        meaning=signature.cause if signature else "",
        remedy=signature.remedy if signature else "",
        lines=chosen.lines,
        elsewhere=_sightings(chosen, found),
    )


def _sightings(chosen: Suspect, found: Sequence[Suspect]) -> tuple[Sighting, ...]:
    """What other processes said in that second; a task that only repeats the error of one that it called is none."""
    others = [
        each
        for each in sorted(found, key=_at)
        if abs(_at(each) - _at(chosen)) <= _SAME_MOMENT_MS
        and (each.rank, each.process) != (chosen.rank, chosen.process)
        and (each.error != chosen.error or each.depth >= chosen.depth)
    ]
    return tuple(Sighting(each.error, _seconds(each), each.rank, each.process) for each in others[:_MOST_SIGHTINGS])


def _at(suspect: Suspect) -> float:
    return suspect.at_ms if suspect.at_ms is not None else math.inf


def _seconds(suspect: Suspect) -> float | None:
    return suspect.at_ms / 1000 if suspect.at_ms is not None else None
