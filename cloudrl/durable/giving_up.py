"""When a job is tried again, and when not: attempts that end alike, or that make no progress. Pure."""

from __future__ import annotations

import zlib
from typing import Optional, Tuple

from cloudrl.protocol.durable_jobs import Attempt, DurableJob, Result, Verdict

ATTEMPTS_WITHOUT_PROGRESS = 3
"""So many attempts that begin at one step end the job, whatever they have ended of (NVRx: max_no_progress_cycles)."""
FIRST_PAUSE_S, _MOST_PAUSE_S = 10.0, 900.0
"""Between two attempts without a newer step; each is twice as long as the one before."""
_JITTER = 0.2
LONGEST_PAUSE_S = _MOST_PAUSE_S * (1 + _JITTER)
_TWICE_IS_ENOUGH = (Verdict.UNKNOWN, Verdict.HANG, Verdict.SHORT)


def gives_up(job: DurableJob, from_step: int) -> Optional[Tuple[Result, str]]:
    """Why a job is not tried again from this step; None where it is."""
    last = job.last
    if last is None or from_step > last.from_step:
        return None
    before = job.attempts[-2] if len(job.attempts) > 1 else None
    is_same = before is not None and before.verdict is last.verdict
    if is_same and last.verdict is Verdict.SHORT:
        return Result.SUCCEEDED, f"{last.reason}, and so did the attempt before"
    if before is not None and is_same and (last.verdict in _TWICE_IS_ENOUGH or _is_equal(before, last)):
        return Result.FAILED, f"{last.reason}; it ended like this twice, without a newer step"
    alike = sum(attempt.from_step >= from_step for attempt in job.attempts)
    if alike >= ATTEMPTS_WITHOUT_PROGRESS:
        return Result.FAILED, f"{alike} attempts from {step_text(from_step)} made no newer step; {last.reason}"
    return None


def _is_equal(before: Attempt, last: Attempt) -> bool:
    return bool(last.signature) and before.signature == last.signature


def next_pause_s(job: DurableJob) -> float:
    """Longer with each attempt that began where the one before did, and not equal for two jobs."""
    last = job.attempts[-1]
    alike = sum(attempt.from_step == last.from_step for attempt in job.attempts)
    jitter = 1 + _JITTER * (zlib.crc32(last.submission_id.encode()) % 1000) / 1000
    return float(min(_MOST_PAUSE_S, FIRST_PAUSE_S * 2 ** (alike - 1)) * jitter)


def step_text(step_number: Optional[int]) -> str:
    """Where an attempt goes on from: `step 4`, or `the beginning`; None for a step that only verl knows."""
    if step_number is None:
        return "the step that verl finds"
    return f"step {step_number}" if step_number else "the beginning"
