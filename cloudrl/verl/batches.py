"""Batch sizes that fit each other, the GPUs and the parallelism: one set in place of a suggestion for each.

A rule of `cloudrl.verl.rules` looks at one condition, and the number that it suggests may break the next one. Here the
sizes are chosen together, near those that were asked for, and every rule has accepted them.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cloudrl.verl.keys import ACTOR, CRITIC, REF, ROLLOUT
from cloudrl.verl.override_parsing import Problem
from cloudrl.verl.rules import problems
from cloudrl.verl.setting import BATCH, Setting

_MINI = {role: f"{role}.ppo_mini_batch_size" for role in (ACTOR, CRITIC)}
_MICRO = tuple(
    f"{role}.{name}_micro_batch_size_per_gpu"
    for role, name in ((ACTOR, "ppo"), (CRITIC, "ppo"), (ROLLOUT, "log_prob"), (REF, "log_prob"))
)
_SIZES = (BATCH, *_MINI.values(), *_MICRO)


def with_fitting_batches(setting: Setting, found: Sequence[Problem]) -> tuple[Problem, ...]:
    """The same problems; those about sizes of batches have the sizes of one set as their hint."""
    if not any(_keys(problem) for problem in found):
        return tuple(found)
    fitting = fitting_sizes(setting)
    if fitting is None:
        return tuple(found)
    told, changed = set[str](), list[Problem]()
    for problem in found:
        if not _keys(problem):
            changed.append(problem)
            continue
        needed = {key for key in _keys(problem) if key in fitting} or {*fitting} - told
        told |= needed
        words = [f"{key}={fitting[key]}" for key in sorted(needed)]
        others = [word for word in shlex.split(problem.hint) if word.partition("=")[0] not in _SIZES]
        changed.append(replace(problem, hint=shlex.join([*words, *others]) or problem.hint))
    if missing := sorted({*fitting} - told):  # the first fault is answered by the whole set
        at = next(index for index, problem in enumerate(changed) if _keys(problem))
        more = shlex.join(f"{key}={fitting[key]}" for key in missing)
        changed[at] = replace(changed[at], hint=f"{changed[at].hint} {more}")
    return tuple(changed)


def fitting_sizes(setting: Setting) -> dict[str, int] | None:
    """The sizes to change, so that no rule has anything against a size any more; None if none were found."""
    for candidate in _candidates(setting):
        sizes = dict(candidate)
        tried = _with(setting, sizes)
        left = [problem for problem in problems(tried) if _keys(problem)]
        for _ in range(3):  # micro batches follow from the others
            micro = {key: value for problem in left for key, value in _suggested(problem) if key in _MICRO}
            if not micro:
                break
            sizes |= micro
            tried = _with(setting, sizes)
            left = [problem for problem in problems(tried) if _keys(problem)]
        if not left:
            return {key: value for key, value in sizes.items() if value != setting.get(key)}
    return None


def _candidates(setting: Setting) -> Iterator[dict[str, int]]:
    """Mini and train batches, the train batch a whole number of mini batches where it was one; nearest below first."""
    batch, mini = setting.whole(BATCH) or 0, setting.whole(_MINI[ACTOR]) or 0
    ranks = setting.data_parallel(ACTOR) or setting.world_size
    critic = setting.whole(_MINI[CRITIC]) if setting.uses_critic else None
    steps = dict.fromkeys((math.lcm(ranks, setting.world_size), ranks, ranks // math.gcd(ranks, setting.rollout_n)))
    yield {}
    for step in steps:
        updates = max(1, round(batch / mini)) if mini > 0 and batch > 0 else 1
        wanted = mini if 0 < mini <= batch or batch < 1 else batch
        below = max(step, wanted // step * step)
        for size in dict.fromkeys((below, below + step)):
            for times in (updates, 1):
                sizes = {BATCH: size * times, _MINI[ACTOR]: size}
                yield {**sizes, **({_MINI[CRITIC]: size} if critic is not None else {})}


def _keys(problem: Problem) -> list[str]:
    """The sizes of batches that its hint suggests."""
    return [key for key, _ in _suggested(problem)]


def _suggested(problem: Problem) -> Iterator[tuple[str, int]]:
    for word in problem.hint.split():
        key, _, value = word.partition("=")
        if key in _SIZES and value.lstrip("-").isdigit():
            yield key, int(value)


def _with(setting: Setting, sizes: Mapping[str, int]) -> Setting:
    values: Mapping[str, Any] = setting.values
    for key, size in sizes.items():
        values = _set(values, key.split("."), size)
    return replace(setting, values=values)


def _set(values: Any, names: Iterable[str], value: int) -> dict[str, Any]:
    first, *rest = names
    below = dict(values) if isinstance(values, Mapping) else {}
    return {**below, first: _set(below.get(first), rest, value) if rest else value}
