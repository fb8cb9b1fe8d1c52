"""When a job that runs is asked to save at the end of its step: before the cluster ends, or a machine is taken back."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Callable, Dict, Iterable, Mapping, Optional, Set, Tuple

from cloudrl.durable.notices import LEADS_S, Pace, SaveWishes, near
from cloudrl.node.renewal import runs_for_s
from cloudrl.protocol.interruptions import Interruption, Notices, countdown_text
from cloudrl.protocol.job_work import SaveNote
from cloudrl.protocol.options import BudgetLimits
from cloudrl.protocol.report import NodeReport
from cloudrl.units import duration_text


def notices_of(reports: Iterable[NodeReport]) -> Dict[int, Interruption]:
    """Rank -> notice, of nodes that have one."""
    return {report.rank: report.interruption for report in reports if report.interruption is not None}


def last_save(reports: Iterable[NodeReport], submission_id: str) -> Optional[SaveNote]:
    """The last save that the trainer of a submission has told of; None before the first."""
    works = (report.work for report in reports)
    notes = (work.saved for work in works if work is not None and work.saved is not None)
    own = (note for note in notes if note.submission_id == submission_id)
    return max(own, key=lambda note: note.at, default=None)


@dataclass
class SaveAsker:
    """Asks on behalf of rank 0, and says when it does.

    Attributes:
        attempt: the submission id of the durable job that runs; None without one.
        left_s: until the cluster ends; None if nothing is known of an end.
        notices: rank -> notice that its machine is taken back.
        pace: of the run.
        say: prints a line.
        saved: the last save of a submission; None before the first.
        now: seconds since the epoch.
    """

    attempt: Callable[[], Optional[str]]
    left_s: Callable[[], Optional[float]]
    notices: Callable[[], Notices]
    pace: Callable[[], Pace]
    say: Callable[[str], object]
    saved: Callable[[str], Optional[SaveNote]] = lambda _: None
    now: Callable[[], float] = time.time
    _wishes: SaveWishes = field(default_factory=SaveWishes)
    _wish: str = ""
    _told: str = ""
    _said: Set[str] = field(default_factory=set)
    _saved_before: Tuple[Optional[str], int] = (None, 0)

    @property
    def is_urgent(self) -> bool:
        """Whether the cluster or a machine is about to end, so that copies may take all of the network."""
        left_s = self.left_s()
        return (left_s is not None and left_s < LEADS_S[0]) or bool(near(self.notices(), self.now()))

    def look(self) -> str:
        """The wish as it is now, for `HeartbeatReply.save_wish`."""
        attempt, notices, now = self.attempt(), self.notices(), self.now()
        left_s, pace = self.left_s(), self.pace() if notices else Pace()
        wish = self._wishes.find(attempt, left_s, notices, pace, now)
        words = [f"the cluster ends in {duration_text(left_s)}"] if left_s is not None and left_s < LEADS_S[0] else []
        words += [countdown_text(rank, notice, now) for rank, notice in sorted(notices.items())]
        needed = f"a save and its copy would take {duration_text(pace.needed_s)}"
        told = f"{attempt} {sorted(notices)}"
        if wish and wish != self._wish and wish not in self._said:
            self._said.add(wish)
            self._saved_before = attempt, self._saved_step(attempt)
            self.say(f"job {attempt} is asked to save: {'; '.join(words)}")
        elif attempt and notices and not wish and self._told != told:
            self._told = told
            was_asked = bool(self._wish) and self._saved_before[0] == attempt
            if not was_asked or self._saved_step(attempt) <= self._saved_before[1]:
                adverb = "no longer" if was_asked else "not"
                self.say(f"job {attempt} is {adverb} asked to save: {'; '.join(words)}, and {needed}")
        self._wish = wish
        return wish

    def _saved_step(self, attempt: Optional[str]) -> int:
        note = self.saved(attempt) if attempt else None
        return note.step if note is not None else 0


def left_s(
    limits: BudgetLimits, cost: Optional[float], env: Mapping[str, str], now: float, running_s: float = 0.0
) -> Optional[float]:
    """Seconds until the money is spent or the cluster's time is up, whichever comes first; None without an end.

    Args:
        limits: what the user has set.
        cost: US dollars so far; None if the price is unknown.
        env: of the agent, with CLOUDRL_ENDS_AT where whoever started it knows an end: on Slurm before the signal that
            comes before the time limit. Slurm 23.02 and later set SLURM_JOB_END_TIME (sbatch(1)).
        now: seconds since the epoch.
        running_s: since the agent started, from which the provider's `max_duration` counts.
    """
    ends = []
    if (end_s := runs_for_s(limits)) is not None:
        ends.append(end_s - running_s)
    if limits.max_cost is not None and limits.price_per_hour and cost is not None:
        ends.append((limits.max_cost - cost) / limits.price_per_hour * 3600)
    for name in ("CLOUDRL_ENDS_AT", "SLURM_JOB_END_TIME"):
        end_time = env.get(name, "")
        if end_time.isascii() and end_time.isdecimal():
            ends.append(int(end_time) - now)
    return min(ends, default=None)
