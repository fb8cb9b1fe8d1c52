"""From samples of a running job, one after the other, to a suspicion and a hang. Pure; no clock of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from cloudrl.hangs.limits import PhaseTimes
from cloudrl.protocol.job_phases import OTHER_PROGRAM, Grade, JobPhase
from cloudrl.protocol.job_work import EndedPhase

SUSPECT_STILL_S = 60.0
"""Without any movement: then the stacks are looked at, and nothing is reported yet."""
_SUSPECT_LONGEST = 2.0
PROOF_S = 60.0
"""For so long a stopped process, a dead actor or an equal stack must have been seen."""
UNINTERRUPTIBLE_S = 120.0
STARVED_PERCENT = 90.0
"""Of the time some process waited for a CPU. Each of 30 that compute on 2 CPUs gets as much as one that only ticks."""
_GAP_S = 60.0
"""Between two samples: the machine was suspended, or too busy to look."""
_CLOCK_JUMP_S = 30.0
_UNJUDGED_FIRST = (str(JobPhase.TESTING),)
"""Phases that are not judged before they have ended once: a first validation is often taken for a hang."""


@dataclass(frozen=True)
class Sample:
    """A job at one moment.

    Attributes:
        at: seconds of a clock that never runs backwards.
        now: seconds since the epoch.
        phase: of the job.
        since: seconds since the epoch; when the phase began.
        moves: whether anything has worked since the sample before, see `cloudrl.hangs.movement`.
        ended: phases that have ended; those that were in an earlier sample count once.
        is_paused: whether a task waits for a debugger.
        is_starved: whether a node's CPUs are taken, so that what works is no longer told from what stands still.
    """

    at: float
    now: float
    phase: str
    since: float
    moves: bool
    ended: tuple[EndedPhase, ...] = ()
    is_paused: bool = False
    is_starved: bool = False


@dataclass(frozen=True)
class Verdict:
    """What the samples so far say.

    Attributes:
        is_suspicious: whether the stacks should be looked at.
        grade: `STILL` or `LATE` for a hang, None without one.
        still_s: since anything moved.
        limit_s: that was exceeded; without a hang, that of the stillness.
        is_unjudged: whether the phase cannot be told from a hang yet.
        is_unusual: whether it has never been still for so long before, and gone on.
        is_long: whether it has taken twice as long as ever before.
    """

    is_suspicious: bool = False
    grade: Grade | None = None
    still_s: float = 0.0
    limit_s: float = 0.0
    is_unjudged: bool = False
    is_unusual: bool = False
    is_long: bool = False


class HangWatch:
    """One job, from its start.

    Args:
        times: what earlier attempts of the run have shown; grows with this one.
    """

    def __init__(self, times: PhaseTimes) -> None:
        self.times = times
        self._last: Sample | None = None
        self._moved_at = self._counts_from = 0.0
        self._longest_still_s = 0.0
        self._seen_number = 0
        self._is_spoiled = False
        self._step: int | None = None
        self._step_began: float | None = None

    def note_step(self, step: int | None, at: float) -> None:
        """The last step that has ended, as the log says at a time; the next one begins when that is news."""
        if step != self._step:
            self._step_began = at if self._step is not None or self._last is not None else None
            self._step = step

    def left_in_step_s(self, at: float) -> float:
        """Until the step that runs has ended, if it takes as long as usual; 0 if that is not known."""
        usual_s = self.times.usual_s(str(JobPhase.STEP))
        return max(0.0, self._step_began + usual_s - at) if self._step_began is not None and usual_s else 0.0

    def add(self, sample: Sample, *, exact_phase: str | None = None) -> Verdict:
        """The next sample, and what follows.

        Args:
            sample: of the job.
            exact_phase: where its stack says more than its timers: the first validation is in no timer.
        """
        last, self._last = self._last, sample
        if last is None:
            self._moved_at = self._counts_from = sample.at
            self._learn(sample.ended, sample.phase)
        elif sample.is_paused or _is_broken(last, sample):
            self._restart(sample)
        elif (last.phase, last.since) != (sample.phase, sample.since):
            self._longest_still_s = max(self._longest_still_s, last.at - self._moved_at)  # it was still to its end
            self._learn(sample.ended, last.phase)
            self._is_spoiled = False
            self._moved_at = self._counts_from = sample.at
            self._longest_still_s = 0.0
        elif sample.moves:
            self._longest_still_s = max(self._longest_still_s, last.at - self._moved_at)
            self._moved_at = sample.at
        return self._verdict(sample, exact_phase or sample.phase)

    def was_kept_waiting(self, at: float, now: float) -> None:
        """Whoever samples was busy until then, by both clocks: no machine was suspended meanwhile."""
        if self._last is not None:
            self._last = replace(self._last, at=at, now=now)

    def _restart(self, sample: Sample) -> None:
        """Count from now on. The phase that runs took longer than it would have, so it is no example."""
        self._seen_number = max([self._seen_number, *(ended.number for ended in sample.ended)])
        self._is_spoiled = True
        self._moved_at = self._counts_from = sample.at
        self._longest_still_s = 0.0

    def _learn(self, ended: Iterable[EndedPhase], last_phase: str) -> None:
        """The longest stillness was in the phase that was seen last; those in between were too short for any."""
        for phase in ended:
            if phase.number > self._seen_number:
                self._seen_number = phase.number
                is_last = phase.phase == last_phase
                if not (is_last and self._is_spoiled):
                    still_s = self._longest_still_s if is_last else 0.0
                    self.times.add(phase.phase, phase.seconds, min(still_s, phase.seconds))

    def _verdict(self, sample: Sample, phase: str) -> Verdict:
        still_s = sample.at - self._moved_at
        spent_s = max(0.0, min(sample.now - sample.since, sample.at - self._counts_from))
        still_limit_s, limit_s = self.times.still_limit_s(phase), self.times.limit_s(phase)
        is_unusual = still_s > self.times.still_s.get(phase, 0.0)
        is_first = phase in _UNJUDGED_FIRST and phase not in self.times.seconds
        is_unjudged = is_first or phase == OTHER_PROGRAM
        is_long = spent_s > self._suspect_s(sample.phase)
        is_suspicious = (still_s > SUSPECT_STILL_S or is_long) and not sample.is_paused
        verdict = Verdict(is_suspicious, None, still_s, still_limit_s, is_unjudged, is_unusual, is_long)
        if is_unjudged or sample.is_paused:
            return verdict
        if still_s > still_limit_s and not sample.is_starved:
            return replace(verdict, grade=Grade.STILL)
        if spent_s > limit_s:
            return replace(verdict, grade=Grade.LATE, limit_s=limit_s)
        return verdict

    def _suspect_s(self, phase: str) -> float:
        """When to look: by the timer's phase, since with what a look says of it the suspicion would come and go.

        A phase that never ended is looked at before it is late: its stack may say that it is a validation.
        """
        if phase not in self.times.seconds:
            return self.times.limit_s(phase) / 2
        return max(SUSPECT_STILL_S, _SUSPECT_LONGEST * self.times.longest_s(phase))


def _is_broken(last: Sample, sample: Sample) -> bool:
    """Whether a machine was suspended, or a clock was set, between two samples."""
    passed_s = sample.at - last.at
    return passed_s > _GAP_S or abs((sample.now - last.now) - passed_s) > _CLOCK_JUMP_S
