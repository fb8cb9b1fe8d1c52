"""How long a phase may take, and for how long nothing may move in it, from what was seen so far. Pure, no clock.

The rules were simulated over 8,000 hours of runs with phases as real logs have them (`tests/hangs/test_limits.py`):
one false alarm, and a hang is reported after 2 minutes in the median. A limit for a whole step does not do: a step with
a validation may take 18 times as long as one without, and six times a step of two hours is half a day.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cloudrl.protocol.job_phases import JobPhase

_KEPT = 32
"""Durations of a phase that are remembered: older ones were of answers of another length."""
_ENOUGH = 3
"""Durations of which a median is taken; of fewer, half the factor of the longest."""
_FACTOR, _LONGEST = 10.0, 2.0
_STILL_S, _STILL_WAITING_S, _STILL_FIRST_S = 120.0, 330.0, 900.0
_STILL_FACTOR = 3.0
_WAITING = frozenset(
    map(
        str,
        (
            JobPhase.STEP,
            JobPhase.GEN,
            JobPhase.REWARD,
            JobPhase.TESTING,
            JobPhase.SAVE_CHECKPOINT,
            JobPhase.LOAD_CHECKPOINT,
            JobPhase.DATA,
            JobPhase.INIT,
            JobPhase.PLACEMENT,
        ),
    )
)
"""Phases that wait for others: a tool, a judge, a sandbox, for which verl's own limit is 300 s, or a share. The rest
computes."""
_MAX_PHASES = 64


@dataclass(frozen=True)
class Rule:
    """Bounds of what a phase may take, in seconds.

    Attributes:
        floor_s: a limit is never lower.
        first_s: the limit until the phase has ended once: engines compile, caches are empty.
    """

    floor_s: float
    first_s: float


RULES: Mapping[str, Rule] = {
    "placement": Rule(1800.0, 3600.0),
    "init": Rule(2700.0, 5400.0),  # model load and CUDA graphs, of which verl prints little
    "load_checkpoint": Rule(1800.0, 5400.0),
    "data": Rule(540.0, 1800.0),
    "gen": Rule(1800.0, 14400.0),  # the long tail of answers and tools
    "reward": Rule(1800.0, 7200.0),
    "old_log_prob": Rule(540.0, 3600.0),  # the first one compiles
    "ref": Rule(540.0, 3600.0),
    "values": Rule(540.0, 3600.0),
    "adv": Rule(360.0, 1200.0),
    "update_critic": Rule(720.0, 10800.0),
    "update_actor": Rule(720.0, 10800.0),
    "update_weights": Rule(540.0, 1800.0),
    "save_checkpoint": Rule(1800.0, 5400.0),
    "testing": Rule(2700.0, 14400.0),  # 51,000 rows took 6,000 s
    "step": Rule(1800.0, 28800.0),
}
"""By the names of `JobPhase`; a phase of another trainer has the rule of a whole step."""


@dataclass
class PhaseTimes:
    """What each phase has taken, and for how long it was still at a stretch.

    Attributes:
        seconds: phase -> its last durations, oldest first.
        still_s: phase -> the longest time in which nothing moved and which ended by itself.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)
    still_s: dict[str, float] = field(default_factory=dict)

    def add(self, phase: str, seconds: float, still_s: float = 0.0) -> None:
        """A phase has ended.

        Args:
            phase: its name.
            seconds: how long it took.
            still_s: the longest time at a stretch in which nothing moved.
        """
        is_new = phase not in self.seconds
        if not math.isfinite(seconds) or seconds <= 0 or (is_new and len(self.seconds) >= _MAX_PHASES):
            return
        durations = self.seconds.setdefault(phase, [])
        durations.append(seconds)
        del durations[:-_KEPT]
        self.still_s[phase] = max(self.still_s.get(phase, 0.0), still_s)

    def usual_s(self, phase: str) -> float | None:
        """The median of what the phase has taken; None if it never ended."""
        durations = self.seconds.get(phase)
        return median(durations) if durations else None

    def longest_s(self, phase: str) -> float:
        """The longest that the phase has taken; infinite if it never ended."""
        return max(self.seconds.get(phase, ()), default=math.inf)

    def limit_s(self, phase: str) -> float:
        """After so many seconds without its end the phase is late, though something moves."""
        rule = RULES.get(phase, RULES["step"])
        durations = self.seconds.get(phase)
        if not durations:
            return rule.first_s
        many = len(durations) >= _ENOUGH
        usual_s = _FACTOR * median(durations) if many else _FACTOR / 2 * max(durations)
        return max(rule.floor_s, _LONGEST * max(durations), usual_s)

    def still_limit_s(self, phase: str) -> float:
        """For so long nothing at all may move: three times what has been seen, more in a phase that never ended."""
        if phase not in self.seconds:
            return _STILL_FIRST_S
        floor_s = _STILL_WAITING_S if phase in _WAITING or phase not in RULES else _STILL_S
        return max(floor_s, _STILL_FACTOR * self.still_s.get(phase, 0.0))

    def to_json(self) -> dict[str, Any]:
        """For a later attempt of the same run."""
        return {"seconds": self.seconds, "still_s": self.still_s}

    @classmethod
    def from_json(cls, data: Any) -> PhaseTimes:
        """What an earlier attempt has kept; what is not of that form is left out."""
        times = cls()
        rows = data.get("seconds") if isinstance(data, dict) else None
        still = data.get("still_s") if isinstance(data, dict) else None
        for phase, durations in rows.items() if isinstance(rows, dict) else ():
            for seconds in durations if isinstance(durations, list) else ():
                if _is_number(seconds):
                    times.add(str(phase), float(seconds))
        for phase, seconds in still.items() if isinstance(still, dict) else ():
            if phase in times.seconds and _is_number(seconds) and 0 <= seconds <= times.longest_s(phase):
                times.still_s[phase] = float(seconds)
        return times


def median(values: Sequence[float]) -> float:
    """The median, without the imports of `statistics`."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
