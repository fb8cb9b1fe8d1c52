"""Where a training stands between two lines of its log: the phase, since when, and whether it hangs.

A phase is a word: one of `JobPhase`, or the name of a timer that only another trainer has, such as `switch_wait`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Optional, Tuple

from cloudrl.units import duration_text

OTHER_PROGRAM = "running"
"""The phase of a job that has not shown to be a training with verl: how long it may stand still is unknown."""


class JobPhase(str, enum.Enum):
    """The phases of verl's trainers, in the order of a run.

    From `GEN` on they are verl's own timers (verl 0.9.1, trainer/ppo/v1/trainer_base.py: `marked_timer`).
    """

    PLACEMENT = "placement"
    """Ray looks for CPUs and GPUs for the workers."""
    INIT = "init"
    """Workers start, models load, rollout engines come up."""
    LOAD_CHECKPOINT = "load_checkpoint"
    DATA = "data"
    """The data loader has the next batch to give."""
    GEN = "gen"
    """Rollout: answers are written, tools are called."""
    REWARD = "reward"
    OLD_LOG_PROB = "old_log_prob"
    REF = "ref"
    VALUES = "values"
    ADV = "adv"
    UPDATE_CRITIC = "update_critic"
    UPDATE_ACTOR = "update_actor"
    UPDATE_WEIGHTS = "update_weights"
    """The rollout engines get the new weights."""
    SAVE_CHECKPOINT = "save_checkpoint"
    TESTING = "testing"
    STEP = "step"
    """Within a step, and no more is known."""

    def __str__(self) -> str:
        return self.value


class Grade(str, enum.Enum):
    """How sure it is that a job hangs, the surest first."""

    PROOF = "proof"
    """It cannot go on: a dead actor, a stopped process, resources that no node has."""
    STILL = "still"
    """Nothing has moved for longer than this phase ever was still."""
    LATE = "late"
    """Something moves, but the phase takes far longer than it ever did."""
    SUSPECTED = "suspected"
    """Two looks have found the same process holding up the others, but no limit is exceeded yet."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Blame:
    """What the others wait for.

    Attributes:
        rank: of the node; None for what has no node, such as a placement.
        host: its address.
        actor: the class of the Ray actor, or the name of the program.
        pid: on that node, 0 if unknown.
        method: of the actor that it runs, "" if unknown.
        frame: the innermost frame that is not a library's, such as `compute_score (reward.py:11)`; "" if unknown.
        reason: what is wrong with it, as the end of a sentence: "is stopped (state T)".
    """

    rank: Optional[int]
    actor: str
    reason: str
    pid: int = 0
    host: str = ""
    method: str = ""
    frame: str = ""


@dataclass(frozen=True)
class Hang:
    """A job that stands still.

    Attributes:
        grade: how sure that is.
        told_at: seconds since the epoch; when it was found.
        still_s: for how long nothing has moved now.
        limit_s: after which it counts as a hang: of the stillness, or of the phase where the grade is `LATE`.
        blame: who keeps the others waiting, as two looks said alike; empty while that is unknown.
        waiting: how many processes wait, and where: "7 other ranks wait in barrier"; "" if unknown.
        remedy: what to do.
        file: with the stacks of all ranks, in the logs of rank 0; "" without them.
    """

    grade: Grade
    told_at: float
    still_s: float = 0.0
    limit_s: float = 0.0
    blame: Tuple[Blame, ...] = ()
    waiting: str = ""
    remedy: str = ""
    file: str = ""


@dataclass(frozen=True)
class JobState:
    """The training that runs on a cluster, as rank 0's agent sees it.

    Attributes:
        submission_id: of the job.
        phase: in which it is.
        since: seconds since the epoch; when the phase has begun.
        usual_s: the median of how long the phase took before; None if it never ended.
        step: which step runs; None before the first, or if unknown.
        hang: None while it does not hang.
    """

    submission_id: str
    phase: str
    since: float
    usual_s: Optional[float] = None
    step: Optional[int] = None
    hang: Optional[Hang] = None


def phase_text(state: JobState, now: float) -> str:
    """For a person: `gen for 2 min 03 s, usually 40 s`.

    Args:
        state: of the job.
        now: seconds since the epoch.
    """
    usual = f", usually {duration_text(state.usual_s)}" if state.usual_s is not None else ""
    return f"{state.phase} for {duration_text(now - state.since)}{usual}"
