"""All reasons why a job cannot run, and one set of overrides that settles them together.

What a hint suggests may uncover the next fault, or contradict the hint beside it. So the hints are applied and the job
is planned again, as often as needed: the set that is shown has passed the same checks as the job.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cloudrl.jobs.findings import Finding, JobRefused, overrides_of, with_fix, words_of
from cloudrl.options.job import SubmitOptions
from cloudrl.spec import Job
from cloudrl.spec.hydra import override_argument, split_key

_ROUNDS = 8
"""Suggestions that still change after so many rounds go round in circles."""

Plan = Callable[[SubmitOptions], Sequence[Finding]]


def refusal(first: Sequence[Finding], job: Job, options: SubmitOptions, plan: Plan) -> JobRefused:
    """What to raise for a job that cannot run.

    Args:
        first: what planning has found, at least one.
        job: the recipe.
        options: as the user gave them.
        plan: gives the findings with other options.
    """
    found, shown, overrides = list(first), list(first), dict(options.overrides)
    blocking: list[Finding] = []
    for _ in range(_ROUNDS):
        changed = with_fix(job, overrides, _fixes(found))
        more = [finding for finding in found if finding.key and not finding.fix and finding not in blocking]
        if changed == overrides and not more:
            break
        overrides, blocking = changed, [*blocking, *more]
        # without the keys that have no remedy, the rest can be looked at
        readable = with_fix(job, overrides, (f"~{finding.key}" for finding in blocking))
        found = list(plan(replace(options, overrides=readable)))
        ours = {split_key(key)[1] for key in overrides if overrides[key] != options.overrides.get(key)}
        shown += [finding for finding in found if finding not in shown and not _is_about(finding, ours)]
    rest = (*blocking, *(finding for finding in found if finding not in blocking))
    shown += [finding for finding in rest if finding.text not in {other.text for other in shown}]
    final = tuple(_as_suggested(finding, overrides) for finding in shown)
    return JobRefused(final, words_of(options.overrides, overrides), rest)


def _fixes(found: Iterable[Finding]) -> list[str]:
    return [word for each in found for word in each.fix]


def _is_about(finding: Finding, ours: set[str]) -> bool:
    """Whether it is our own suggestion that it asks to change."""
    changes = {split_key(word.partition("=")[0])[1] for word in finding.fix}
    return bool(changes) and changes <= ours


def _as_suggested(finding: Finding, overrides: Mapping[str, Any]) -> Finding:
    """The finding with the values of the whole set in its hint."""
    final = {split_key(key)[1]: override_argument(key, str(text)) for key, text in overrides.items()}
    first, newline, more = finding.hint.partition("\n")
    if not overrides_of(first):
        return finding
    words = [final.get(split_key(word.partition("=")[0])[1], word) for word in overrides_of(first)]
    return replace(finding, hint=f"{shlex.join(words)}{newline}{more}")
