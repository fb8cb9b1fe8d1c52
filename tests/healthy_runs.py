"""Healthy trainings as rows of phases, with the durations of real logs, and heavier tails than those show.

The medians are real: PPO on gsm8k with 0.5B, WebShop with 1.5B, Search-R1 with 3B, kernel RL with 14B, DAPO with 32B on
128 GPUs, ReTool with 32B on one node. Assumed are: lognormal noise, stragglers (Pareto, up to 8 times), batches that
DAPO refills, answers that grow, an hour with busy neighbours, a topology that gets 2.7 times slower at once, saves onto
a busy share, and how long nothing moves in a phase.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from cloudrl.hangs.limits import PhaseTimes
from cloudrl.hangs.watch import HangWatch, Sample
from cloudrl.protocol.job_work import EndedPhase
from cloudrl.protocol.report import Usage

_TICK_S = 30.0


@dataclass(frozen=True)
class Profile:
    """A kind of run: seconds of its phases.

    Attributes:
        step: phase -> median seconds, in their order.
        test_s, test_every, save_s, save_every: seconds, and at which steps.
        refills: how likely DAPO samples one more batch.
        first: factor of the first step.
        growth: factor of lengths at the end of the run.
    """

    step: dict[str, float]
    test_s: float
    test_every: int
    save_s: float
    save_every: int
    refills: float = 0.0
    first: float = 2.0
    growth: float = 1.0
    share: float = field(default=1.0, kw_only=True)


PROFILES = {
    "ppo-gsm8k-0.5b": Profile(
        {"gen": 4.4, "reward": 0.1, "old_log_prob": 5.6, "values": 5.2, "adv": 0.1, "update_critic": 18.7}
        | {"update_actor": 21.0},
        23, 5, 17, 5, first=4,
    ),
    "gigpo-webshop-1.5b": Profile(
        {"gen": 14, "old_log_prob": 2, "ref": 2, "adv": 0.1, "update_actor": 5}, 360, 5, 20, 20, first=3
    ),
    "search-r1-3b": Profile(
        {"gen": 132, "old_log_prob": 18, "ref": 16, "adv": 1, "update_actor": 38}, 135, 10, 60, 50, growth=2
    ),
    "search-val-51k": Profile(
        {"gen": 160, "old_log_prob": 20, "ref": 20, "adv": 1, "update_actor": 60}, 6000, 25, 60, 25
    ),
    "kernel-14b": Profile(
        {"gen": 718, "reward": 20, "old_log_prob": 40, "adv": 1, "update_actor": 97}, 600, 50, 314, 20, growth=1.5
    ),
    "dapo-32b-128gpu": Profile(
        {"gen": 900, "reward": 60, "old_log_prob": 150, "adv": 3, "update_actor": 500}, 700, 5, 180, 5, 0.35, growth=4
    ),
    "retool-32b-1node": Profile(
        {"gen": 4190, "reward": 0.1, "old_log_prob": 770, "adv": 0.7, "update_actor": 2760},
        770, 5, 51, 5, first=1.3, growth=1.5,
    ),
    "tiny-cpu": Profile(
        {"gen": 3, "reward": 0.1, "old_log_prob": 1, "adv": 0.1, "update_actor": 4}, 5, 10, 2, 10, first=5, share=0.05
    ),
}  # fmt: skip
"""`share`: of the hours that are simulated, where steps are so short that hours of them say nothing new."""


def phases(profile: Profile, rng: random.Random, hours: float) -> Iterator[tuple[str, float]]:
    """The phases of a run, each with its seconds."""
    total, number, slow_until, regime, length = 0.0, 0, -1.0, 1.0, hours * 3600
    while total < length:
        number += 1
        grown = 1 + (profile.growth - 1) * total / length
        regime = rng.choice([1.0, 1.0, 2.7]) if rng.random() < 0.0005 else regime
        slow_until = total + 3600 if rng.random() < 0.002 else slow_until
        neighbours = 2.0 if total < slow_until else 1.0
        for phase, median_s in profile.step.items():
            seconds = median_s * rng.lognormvariate(0, 0.12) * (profile.first if number == 1 else 1)
            if phase == "gen":
                seconds *= grown * regime * _rollout_factor(profile, rng)
            elif phase == "reward":
                seconds += min(300, 10 * rng.paretovariate(1.0)) if rng.random() < 0.01 else 0
            else:
                seconds *= grown**0.7 * neighbours * (min(6.0, rng.paretovariate(1.5)) if rng.random() < 0.003 else 1)
            total += seconds
            yield phase, seconds
        if number % profile.save_every == 0:
            busy = min(12.0, 2 * rng.paretovariate(1.2)) if rng.random() < 0.03 else 1
            seconds = profile.save_s * rng.lognormvariate(0, 0.4) * busy
            total += seconds
            yield "save_checkpoint", seconds
        if number % profile.test_every == 0:
            slow = min(5.0, rng.paretovariate(1.5)) if rng.random() < 0.02 else 1
            seconds = profile.test_s * grown * rng.lognormvariate(0, 0.15) * slow
            total += seconds
            yield "testing", seconds


def _rollout_factor(profile: Profile, rng: random.Random) -> float:
    batches = 1
    while profile.refills and batches < 10 and rng.random() < profile.refills:
        batches += 1
    straggler = min(8.0, rng.paretovariate(1.2)) if rng.random() < 0.01 else 1.0
    return rng.lognormvariate(0, 0.15) * batches * straggler


def host_memory(profile: Profile, rng: random.Random, hours: float, *, total: int = 1 << 40) -> Iterator[Usage]:
    """Memory of a node in a healthy run, twice a minute: what verl offloads comes and goes with the phases.

    It rises for a while after the start (workers, pinned copies, caches of the allocator), a save holds more for its
    duration, and a collection of garbage frees some now and then.
    """
    base, offloaded, noise = rng.uniform(0.1, 0.5), rng.uniform(0.0, 0.3), rng.uniform(0.001, 0.01)
    rise, rise_s = rng.uniform(0.0, 0.08), rng.uniform(300, 2400)
    garbage, at, now = 0.0, 0.0, 0.0
    for phase, seconds in phases(profile, rng, hours):
        at += seconds
        while now < at:
            garbage = 0.0 if rng.random() < 0.02 else min(0.02, garbage + rng.uniform(0, 0.001))
            on_gpu = offloaded if phase.startswith("update") else 0.0
            saved = 0.03 if phase == "save_checkpoint" else 0.0
            warm = rise * (1 - math.exp(-now / rise_s))
            share = base + offloaded - on_gpu + saved + warm + garbage + rng.gauss(0, noise)
            yield Usage(now, memory_used_bytes=round(max(0.01, share) * total), memory_total_bytes=total)
            now += 30.0


def still_seconds(phase: str, seconds: float, rng: random.Random) -> float:
    """The longest stretch of a healthy phase in which no CPU, no byte and no GPU moves."""
    if phase in ("gen", "testing") and rng.random() < 0.02:
        return min(seconds, 300, 5 * rng.paretovariate(0.9))  # one tool, judge or sandbox that all wait for
    if phase == "reward":
        return min(seconds, 300)
    if phase == "save_checkpoint" and rng.random() < 0.1:
        return min(0.8 * seconds, 10 * rng.paretovariate(1.0))  # a share that takes no more
    if rng.random() < 0.001:
        return min(seconds, 2 * rng.paretovariate(1.0))
    return min(seconds, rng.uniform(0, 3))


class Played:
    """A run that was shown to a `HangWatch`.

    Attributes:
        false_alarms: phases that counted as a hang at some time.
        delays_s: of phases at random, how long a hang in them would have gone unreported.
    """

    def __init__(self, name: str, hours: float) -> None:
        profile = PROFILES[name]
        self.false_alarms: list[tuple[str, float]] = []
        self.delays_s: list[float] = []
        self._watch, self._at = HangWatch(PhaseTimes()), 1000.0
        runs, hangs = random.Random(f"7-{name}"), random.Random(2)
        still = random.Random(1)
        ended: tuple[EndedPhase, ...] = ()
        for number, (phase, seconds) in enumerate(phases(profile, runs, hours * profile.share), 1):
            if number > 20 and hangs.random() < 0.02:
                self.delays_s.append(self._watch.times.still_limit_s(phase))
            self._play(phase, seconds, still_seconds(phase, seconds, still), ended)
            ended = (EndedPhase(number, phase, seconds),)

    def _play(self, phase: str, seconds: float, still_s: float, ended: tuple[EndedPhase, ...]) -> None:
        """A phase: at first nothing moves, then something does until its end."""
        begin, graded = self._at, False
        ticks = [begin + _TICK_S * tick for tick in range(int(seconds / _TICK_S) + 1)]
        for at in sorted([*ticks, begin + still_s, begin + seconds]):
            moves = at == begin or at > begin + still_s
            verdict = self._watch.add(Sample(at, at, phase, begin, moves, ended))
            graded = graded or verdict.grade is not None
        if graded:
            self.false_alarms.append((phase, seconds))
        self._at = begin + seconds
