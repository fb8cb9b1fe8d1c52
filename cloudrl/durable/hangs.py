"""When a job that stands still is stopped and started again. Pure.

A warning comes within minutes; this is far slower, since it ends a process that may yet go on. It never follows from
the clock alone while something moves.
"""

from __future__ import annotations

from typing import Optional

from cloudrl.durable.queue import Hung
from cloudrl.protocol.job_phases import Grade, JobPhase, JobState
from cloudrl.units import duration_text

PROOF_LASTS_S = 180.0
"""Of a proof. A person may have halted a process for a look, and lets it go on."""
STILL_S, TIMES_THE_LIMIT = 900.0, 3.0
"""For which nothing has moved, two looks agree on who holds up the others, and no proof is at hand. NCCL's own
time-out, 10 min in torch 2.13, comes first and says more."""


def find_hang(state: Optional[JobState], submission_id: str, proven_s: float) -> Optional[Hung]:
    """What ends an attempt; None while it may go on.

    Args:
        state: what the hang watch sees.
        submission_id: of the attempt.
        proven_s: for how long each look has found a proof.
    """
    if state is None or state.submission_id != submission_id or state.hang is None:
        return None
    hang = state.hang
    who = hang.blame[0] if hang.blame else None
    if hang.grade is Grade.PROOF and proven_s >= PROOF_LASTS_S:
        is_final = state.phase == JobPhase.PLACEMENT  # the same cluster has not got what it asks for
        return Hung(submission_id, f"{who.actor} {who.reason}" if who is not None else "it cannot go on", is_final)
    if hang.grade is Grade.STILL and who is not None and hang.still_s >= max(STILL_S, TIMES_THE_LIMIT * hang.limit_s):
        frame = f" in {who.frame}" if who.frame else ""
        return Hung(
            submission_id, f"nothing has moved for {duration_text(hang.still_s)} in {state.phase}: {who.actor}{frame}"
        )
    return None
