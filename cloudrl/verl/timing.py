"""Where the time of a step goes."""

import math
from collections.abc import Mapping, Sequence

from cloudrl.verl.metrics import Step

_PREFIX = "timing_s/"
_PARTS = {
    "rollout": ("gen",),
    "reward": ("reward",),
    "log-probs": ("old_log_prob", "ref", "values"),
    "advantage": ("adv",),
    "update": ("update_actor", "update_critic", "update_weights"),
    "save": ("save_checkpoint",),
    "test": ("testing",),
}
"""Part -> verl's timers that make it up (verl 0.9.1, trainer/ppo/v1/trainer_base.py); none contains another."""
_KNOWN = {"step", *(timer for timers in _PARTS.values() for timer in timers)}
OTHER = "other"


def step_parts(step: Step) -> dict[str, float]:
    """Seconds of each part of a step, in the order of a step; together they are `step_s`. Empty without a time.

    A timer that only another trainer has is a part of its own by its name, unless it is longer than what the others
    leave: then it is within one of them.
    """
    if step.step_s is None:
        return {}
    timers = {key.removeprefix(_PREFIX): seconds for key, seconds in step.metrics.items() if key.startswith(_PREFIX)}
    timers = {timer: seconds for timer, seconds in timers.items() if math.isfinite(seconds) and seconds > 0}
    parts = {part: sum(timers.get(timer, 0.0) for timer in names) for part, names in _PARTS.items()}
    left_s = step.step_s - sum(parts.values())
    for timer, seconds in sorted(timers.items(), key=lambda item: -item[1]):
        if timer not in _KNOWN and "/" not in timer and seconds <= left_s:
            parts[timer] = seconds
            left_s -= seconds
    return {part: seconds for part, seconds in {**parts, OTHER: left_s}.items() if seconds > 0}


def mean_parts(steps: Sequence[Step]) -> Mapping[str, float]:
    """The mean of each part over some steps, the longest first, and what is left last."""
    parts = [found for found in map(step_parts, steps) if found]
    names = dict.fromkeys(name for found in parts for name in found)
    means = {name: sum(found.get(name, 0.0) for found in parts) / len(parts) for name in names}
    return dict(sorted(means.items(), key=lambda item: (item[0] == OTHER, -item[1])))
