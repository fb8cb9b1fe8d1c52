"""What an attempt tells while it runs: the steps that it has done and saved, and their scores. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Optional, Tuple, Union

from cloudrl.protocol.durable_jobs import Attempt, DurableJob, Score

_NOTE_EVERY_S = 60.0
"""Steps are written down no more often; a record is synced to the disks of several nodes."""


@dataclass(frozen=True)
class Saved:
    """The trainer of an attempt has told that all its ranks have saved a step."""

    submission_id: str
    step: int


@dataclass(frozen=True)
class Stepped:
    """An attempt has ended a step."""

    submission_id: str
    step: int


@dataclass(frozen=True)
class Scored:
    """What the saved steps have of the metric by which the best one is kept; in place of what was known."""

    submission_id: str
    scores: Tuple[Score, ...]


def progressed(job: DurableJob, event: Union[Saved, Stepped, Scored], now: float) -> Optional[DurableJob]:
    """The job with what is worth recording of an event; None if nothing is.

    Args:
        job: the job; only its newest attempt can still tell anything, also a while after its end.
        event: what has happened.
        now: seconds since the epoch.
    """
    last = job.last
    if last is None or last.submission_id != event.submission_id:
        return None
    if isinstance(event, Scored):
        return replace(job, scores=event.scores) if event.scores != job.scores else None
    if isinstance(event, Saved):
        return job.with_last(saved_step=event.step, saved_at=now) if event.step > last.saved_step else None
    if not last.is_open or event.step <= max(last.step, last.from_step):
        return None
    if last.first_step_at is None:
        return job.with_last(step=event.step, step_at=now, first_step_at=now)
    is_due = now - (last.step_at or 0.0) >= _NOTE_EVERY_S
    return job.with_last(step=event.step, step_at=now) if is_due else None


@dataclass(frozen=True)
class Recovery:
    """What it took to be back after an attempt.

    Attributes:
        start_s: from its end until the next attempt was handed to Ray: machines and Ray came back, files were brought
            to their places. Where the cluster was lost, the end is its last known step; None if that is not known.
        program_s: from then until the first step of the next attempt: imports, models, engines. None before that step.
        lost_steps: steps that are done again, as far as they were written down.
    """

    start_s: Optional[float]
    program_s: Optional[float]
    lost_steps: int


def recovery(before: Attempt, attempt: Attempt) -> Recovery:
    """How long the way from one attempt to the next took, and the steps that it lost."""
    ended_at = before.ended_at if attempt.cluster == before.cluster else before.step_at
    start_s = None if ended_at is None else max(0.0, attempt.started_at - ended_at)
    first = attempt.first_step_at
    program_s = None if first is None else max(0.0, first - attempt.started_at)
    return Recovery(start_s, program_s, max(0, max(before.step, before.saved_step) - attempt.from_step))
