"""How rollout and training of an asynchronous job keep pace. Pure.

verl prints the age of the weights and the timers of a step, and while it waits for prompts, how many there are. How
busy the rollout is, it does not print: that is seen in the GPUs of the nodes that only generate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from cloudrl.hangs.rollout import Unfinished
from cloudrl.protocol.report import Usage
from cloudrl.verl.async_modes import ASYNC, SEPARATE
from cloudrl.verl.charts import STALENESS
from cloudrl.verl.metrics import Step
from cloudrl.verl.timing import waiting_share

TRAINING, ROLLOUT = "training", "rollout"
"""Pools of nodes."""
_TRAINS, _GENERATES = "WorkerDict", "rollout_standalone_"
"""The class of the actors that train, and how the names of those begin that take weights to a rollout of its own (verl
0.9.1, single_controller/ray/base.py: create_colocated_worker_cls; workers/rollout/replica.py: init_standalone)."""


@dataclass(frozen=True)
class Balance:
    """How a job with a rollout of older weights keeps pace; None where nothing says it.

    Attributes:
        age: mean steps by which the weights behind the answers are older than those that they train.
        oldest: the most such steps of any answer.
        waiting: share of its time in which training waits for a rollout on other GPUs, from 0 to 1.
        prompts: as verl has counted them when it last waited for 10 s.
        idle: pool -> share of its time in which its GPUs compute nothing, from 0 to 1.
    """

    age: float | None = None
    oldest: float | None = None
    waiting: float | None = None
    prompts: Unfinished | None = None
    idle: Mapping[str, float] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """What is known as pairs of text, for example `weights behind an answer`, `1.0 steps old, at most 2`."""
        age = f"{self.age:.1f} steps old" if self.age is not None else ""
        most = f", at most {self.oldest:.0f}" if age and self.oldest is not None else ""
        count = self.prompts
        under_way = f"{count.pending + count.running} under way, {count.finished} ready" if count is not None else ""
        rows = (
            ("weights behind an answer", age + most),
            ("prompts when training last waited", under_way),
            ("training waits for the rollout", _percent(self.waiting)),
            *((f"GPUs of the {pool} nodes idle", _percent(share)) for pool, share in self.idle.items()),
        )
        return tuple((what, text) for what, text in rows if text)


def balance(
    mode: str,
    steps: Sequence[Step],
    prompts: Unfinished | None,
    pools: Mapping[int, str],
    usage: Mapping[int, Sequence[Usage]],
) -> Balance | None:
    """How a job keeps pace; None in a mode in which each step waits for its own answers.

    Args:
        mode: of the trainer.
        steps: that are looked at.
        prompts: the last count in its log.
        pools: rank -> pool of the node; empty where the pools share their GPUs, or are unknown.
        usage: rank -> how busy the node was in that time.
    """
    if mode not in ASYNC:
        return None
    ages, most = _values(steps, STALENESS.keys[0]), _values(steps, STALENESS.band[1])
    return Balance(
        age=fmean(ages) if ages else None,
        oldest=max(most, default=None),
        waiting=waiting_share(steps) if mode == SEPARATE else None,
        prompts=prompts,
        idle=_idle(pools, usage) if mode == SEPARATE else {},
    )


def pools_of(actors: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Ray's id of a node -> its pool, where the rollout has nodes of its own; else empty.

    Args:
        actors: of the job, living or dead, rows of Ray's state API.
    """
    trains, generates = set[str](), set[str]()
    for row in actors:
        node, name = row.get("node_id"), row.get("name")
        if isinstance(node, str) and node:
            if row.get("class_name") == _TRAINS:
                trains.add(node)
            elif isinstance(name, str) and name.startswith(_GENERATES):
                generates.add(node)
    if not generates - trains:
        return {}
    return {**dict.fromkeys(generates, ROLLOUT), **dict.fromkeys(trains, TRAINING)}


def _idle(pools: Mapping[int, str], usage: Mapping[int, Sequence[Usage]]) -> dict[str, float]:
    busy: dict[str, list[float]] = {TRAINING: [], ROLLOUT: []}
    for rank, pool in pools.items():
        busy[pool] += [
            gpu.utilization_percent
            for sample in usage.get(rank, ())
            for gpu in sample.gpus
            if gpu.utilization_percent is not None
        ]
    return {pool: 1 - fmean(shares) / 100 for pool, shares in busy.items() if shares}


def _values(steps: Sequence[Step], key: str) -> list[float]:
    return [value for step in steps if math.isfinite(value := step.metrics.get(key, math.nan))]


def _percent(share: float | None) -> str:
    return f"{share:.0%} of the time" if share is not None else ""
