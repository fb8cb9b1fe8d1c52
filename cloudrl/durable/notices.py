"""What follows from a cloud's notice that it takes a machine back. Pure.

The job that runs is asked to save at the end of its step if that can be done in time, no other attempt starts, and the
notice is recorded as the reason of the loss that it announces.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Dict, List, Mapping, Optional, Set

from cloudrl.durable.verdicts import Judgement
from cloudrl.protocol.durable_jobs import DurableJob, Verdict
from cloudrl.protocol.interruptions import Interruption, Notices, end_text

LEADS_S = (900.0, 300.0)
"""Before an end that is known a job saves once with each of these left. A step that runs is ended first."""
_AFTER_S = 300.0
"""For so long after its time the loss of a machine follows from its notice; a machine that is still there stays."""
_MAY_BE_ITS_FAULT = (Verdict.INFRASTRUCTURE, Verdict.UNKNOWN, Verdict.PROGRAM)


@dataclass(frozen=True)
class Noticed:
    """The notices of all nodes, whenever one of them comes, changes or goes."""

    notices: Mapping[int, Interruption] = field(default_factory=dict)


@dataclass(frozen=True)
class Pace:
    """What was measured of a run, in seconds; 0 for what was not.

    Attributes:
        step_left_s: until the step that runs has ended.
        save_s: of a save.
        copying_s: until the step that is being copied is on another machine or in the mirror; 0 if none is.
        copy_s: of such a copy, with all of the network.
    """

    step_left_s: float = 0.0
    save_s: float = 0.0
    copying_s: float = 0.0
    copy_s: float = 0.0

    @property
    def needed_s(self) -> float:
        """Until a step that is saved next is safe; copies go on while the step that runs is ended and saved."""
        return max(self.step_left_s + self.save_s, self.copying_s) + self.copy_s


def near(notices: Notices, now: float) -> Dict[int, Interruption]:
    """Those of machines that are about to go, or have just gone.

    Args:
        notices: of all nodes.
        now: seconds since the epoch. A clock that is set holds up nothing for long.
    """
    return {rank: notice for rank, notice in notices.items() if -_AFTER_S < notice.ends_at - now <= LEADS_S[0]}


def noted(job: Optional[DurableJob], notices: Notices, now: float) -> Optional[DurableJob]:
    """The job that runs with the notices that concern its attempt; None without a job, and if they are known."""
    text = end_text({rank: notice for rank, notice in near(notices, now).items() if notice.explains_loss(now)})
    if job is None or job.attempts[-1].notice == text:
        return None
    return job.with_last(notice=text, notice_changes=job.attempts[-1].notice_changes + 1)


def held(job: DurableJob, notices: Notices, now: float) -> Optional[DurableJob]:
    """The job as it waits for a machine to go, whose loss would end its next attempt at once; None if it may start."""
    soon = near(notices, now)
    return replace(job, waits_for=end_text(soon)) if soon else None


def explained(found: Judgement, notice: str) -> Judgement:
    """What an attempt has ended of, with the notice of a machine that was about to go; "" for none."""
    if not notice or found.verdict not in _MAY_BE_ITS_FAULT:
        return found
    return Judgement(Verdict.INFRASTRUCTURE, f"{found.reason}: {notice}", found.signature)


class SaveWishes:
    """Which attempt is to save at the end of its step."""

    def __init__(self) -> None:
        self._asked: Dict[str, Dict[object, int]] = {}
        self._refused: Set[object] = set()

    def find(
        self, submission_id: Optional[str], left_s: Optional[float], notices: Notices, pace: Pace, now: float
    ) -> str:
        """`SUBMISSION_ID NUMBER` for `HeartbeatReply.save_wish`; "" while nothing is wanted.

        Each reason to save has a number of its own, higher than those before. The wish is the highest of those that
        still hold; a trainer that has saved for a higher one has answered it. A notice whose time has become too short
        is no reason any more, for good. While a machine goes sooner than a save takes, nothing is wanted at all: half a
        save would be in the way of copies.

        Args:
            submission_id: of the attempt that runs; None without one.
            left_s: until the cluster ends; None if nothing is known of an end.
            notices: of all nodes.
            pace: of the run.
            now: seconds since the epoch.
        """
        if not submission_id:
            return ""
        asked = self._asked.setdefault(submission_id, {})
        reasons: List[object] = [("end", passed) for passed in range(1, _passed(left_s) + 1)]
        is_too_late = False
        for rank, notice in notices.items():
            notice_s = notice.ends_at - now
            key = submission_id, rank, notice.name, _passed(notice_s)
            if notice_s > 0 and pace.needed_s <= notice_s:
                reasons += [key] if key not in self._refused else []
                continue
            is_too_late = is_too_late or notice_s > -_AFTER_S
            if key in asked:
                self._refused.add(key)
        number = max((asked.setdefault(reason, len(asked) + 1) for reason in reasons), default=0)
        return f"{submission_id} {number}" if number and not is_too_late else ""


def _passed(left_s: Optional[float]) -> int:
    return sum(left_s < lead_s for lead_s in LEADS_S) if left_s is not None else 0
