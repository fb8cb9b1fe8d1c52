"""Where the time of a step goes."""

import math
from collections.abc import Mapping, Sequence

from cloudrl.verl.metrics import Step

_PREFIX = "timing_s/"
_PARTS = {
    "rollout": ("gen", "switch_wait"),
    "reward": ("reward",),
    "log-probs": ("old_log_prob", "ref", "values"),
    "advantage": ("adv",),
    "update": ("update_actor", "update_critic", "update_weights"),
    "switch": ("switch_to_trainer", "switch_to_rollout"),
    "save": ("save_checkpoint",),
    "test": ("testing",),
}
"""Part -> verl's timers that make it up; none contains another (verl 0.9.1, trainer/ppo/v1/trainer_base.py, and those
of a switch: trainer_separate_async.py)."""
_WAITS = ("gen", "update_weights", *_PARTS["switch"])
"""Timers in which training GPUs do not train where the rollout has its own; in `switch_wait` they generate."""
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


def waiting_share(steps: Sequence[Step]) -> float | None:
    """Share of the time, from 0 to 1, in which training waits for a rollout on other GPUs; None without times."""
    timed = [(step, step.step_s) for step in steps if step.step_s]
    waited_s = sum(
        seconds
        for step, _ in timed
        for timer in _WAITS
        if math.isfinite(seconds := step.metrics.get(f"{_PREFIX}{timer}", 0.0)) and seconds > 0
    )
    return min(1.0, waited_s / sum(step_s for _, step_s in timed)) if timed else None


def mean_parts(steps: Sequence[Step]) -> Mapping[str, float]:
    """The mean of each part over some steps, the longest first, and what is left last."""
    parts = [found for found in map(step_parts, steps) if found]
    names = dict.fromkeys(name for found in parts for name in found)
    means = {name: sum(found.get(name, 0.0) for found in parts) / len(parts) for name in names}
    return dict(sorted(means.items(), key=lambda item: (item[0] == OTHER, -item[1])))
