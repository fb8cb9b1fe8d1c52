"""Which steps durable jobs keep for good, beside the newest ones from which they recover. Pure.

What one job of a run keeps, the later ones keep, too.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from operator import attrgetter

from cloudrl.errors import InputError
from cloudrl.protocol.durable_jobs import DurableJob, Keeping, Score
from cloudrl.saves.inventory import Inventory

LAST = 2
"""So many newest steps stay where a job keeps some for good and says nothing of the others."""
_MOST_SCORES = 500
"""A record of a job is written to disks with each change."""
_value_of = attrgetter("value")
_LOWEST, _HIGHEST = "min:", "max:"


def parse_best(text: str) -> tuple[str, bool]:
    """(metric, whether the lowest value is the best) of `METRIC`, `max:METRIC` or `min:METRIC`.

    Raises:
        InputError: it names no metric.
    """
    metric = text.removeprefix(_LOWEST).removeprefix(_HIGHEST)
    if not metric or any(character.isspace() for character in metric):
        raise InputError(
            f"--keep-best {text!r} names no metric",
            hint="A metric of verl's: --keep-best critic/score/mean\nWhere less is better: --keep-best min:val/loss",
        )
    return metric, text.startswith(_LOWEST)


def kept_steps(job: DurableJob, steps: Iterable[int], whole: Collection[int]) -> dict[int, str]:
    """Step -> why it stays for good.

    Of several steps with the best value the newest stays (as in NeMo-RL, nemo_rl/utils/checkpoint.py). A step that is
    not whole now stays, too, if it is the best of all: the machine with the rest of it may come back.

    Args:
        job: with its scores, and what the other jobs of its run keep (`unite`).
        steps: that are there.
        whole: those of which all files are.
    """
    there, reasons = set(steps), defaultdict[int, dict[str, None]](dict)
    for keeping in job.keepings:
        for step in there:
            if _is_due(step, keeping.every):
                reasons[step][f"every {keeping.every}"] = None
        scores = [score for score in keeping.scores if score.step in there]
        for choice in (scores, [score for score in scores if score.step in whole]) if keeping.best else ():
            score = _best(choice, keeping.best)
            if score is not None:
                reasons[score.step][_best_text(score, keeping.best)] = None
    return {step: ", ".join(texts) for step, texts in reasons.items()}


def unite(job: DurableJob, others: Iterable[DurableJob]) -> DurableJob:
    """The job with all that the jobs of its run keep for good. No later job takes such a step away.

    Args:
        job: with what it knows itself.
        others: all that are recorded; those of other runs do not matter. Scores of steps that a later job has trained
            again do not count.
    """
    earlier = [other for other in others if other.run == job.run and other.job_id != job.job_id]
    scores: dict[str, dict[int, Score]] = {job.keep_best: {}}
    multiples = dict[int, None]()
    for one in (*sorted(earlier, key=_began_at), job):
        first = min((attempt.from_step for attempt in one.attempts), default=None)
        for known in scores.values():
            for step in [step for step in known if first is not None and step > first]:
                del known[step]
        for keeping in one.keepings:
            multiples[keeping.every] = None
            scores.setdefault(keeping.best, {}).update((score.step, score) for score in keeping.scores)
    in_order = {best: tuple(known[step] for step in sorted(known)) for best, known in scores.items()}
    kept = [Keeping(every=every) for every in multiples if every not in (0, job.keep_every)]
    kept += [Keeping(best=best, scores=known) for best, known in in_order.items() if best not in ("", job.keep_best)]
    return replace(job, scores=in_order[job.keep_best], kept_before=tuple(kept))


def unite_runs(jobs: Collection[DurableJob]) -> list[DurableJob]:
    """The newest job of each run, with all that the run keeps for good."""
    newest = {job.run: job for job in sorted(jobs, key=_began_at)}
    return [unite(job, jobs) for job in newest.values()]


def _began_at(job: DurableJob) -> float:
    """When the newest attempt of a job began, seconds since the epoch; infinity before the first."""
    return job.last.started_at if job.last is not None else math.inf


def forget_after(job: DurableJob, step: int | None) -> DurableJob:
    """The same without scores of later steps, which are trained again; nothing changes if the step is not known."""

    def up_to(scores: Iterable[Score]) -> tuple[Score, ...]:
        return tuple(score for score in scores if step is None or score.step <= step)

    before = tuple(replace(keeping, scores=up_to(keeping.scores)) for keeping in job.kept_before)
    return replace(job, scores=up_to(job.scores), kept_before=before)


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step > 0 and step % every == 0


def _best(scores: Iterable[Score], best: str) -> Score | None:
    is_lowest = parse_best(best)[1]
    return max(scores, key=lambda score: (-score.value if is_lowest else score.value, score.step), default=None)


def _best_text(score: Score, best: str) -> str:
    metric, is_lowest = parse_best(best)
    at = "" if score.measured_at == score.step else f" (of step {score.measured_at})"
    return f"{'lowest' if is_lowest else 'best'} {metric} {score.value:.4g}{at}"


def mark_kept(inventory: Inventory, job: DurableJob) -> Inventory:
    """The same, with the reason in each step of the job's run that stays for good."""
    if not any(keeping.every or keeping.best for keeping in job.keepings):
        return inventory
    mine = [checkpoint for checkpoint in inventory.checkpoints if checkpoint.run == job.run]
    partial = {checkpoint.step for checkpoint in mine if not checkpoint.complete}
    steps = {checkpoint.step for checkpoint in mine}
    reasons = kept_steps(job, steps, steps - partial)
    marked = (
        replace(checkpoint, kept=reasons[checkpoint.step])
        if checkpoint.run == job.run and checkpoint.step in reasons
        else checkpoint
        for checkpoint in inventory.checkpoints
    )
    return replace(inventory, checkpoints=tuple(marked))


def score_steps(
    scores: Collection[Score], steps: Collection[int], values: Mapping[int, float], reached: int
) -> tuple[Score, ...]:
    """What is known of saved steps, in their order, and the scores of those that have come since.

    A step has the value that the metric had at this step. Where it had none, the step has the last value since the
    step that was saved before it: a validation of its own weights is better, one of weights close by is what there is.
    If that value is NaN or infinite, the training has diverged and the step has no score.

    Args:
        scores: that are known already. Those of steps that are gone stay: a mirror may have them, or a machine that
            comes back.
        steps: that the nodes have.
        values: step -> value of the metric, as far as the newest attempt has logged it; also NaN and infinity.
        reached: the last step that was logged; later ones have no score yet.
    """
    known = {score.step: score for score in scores}
    before = 0
    for step in sorted({*steps, *known}):
        if step not in known and step <= reached:
            measured_at = max((at for at in values if before < at <= step), default=None)
            if measured_at is not None and math.isfinite(values[measured_at]):
                known[step] = Score(step, values[measured_at], measured_at)
        before = step
    extremes = {choose(known.values(), key=_value_of).step for choose in (min, max) if known}
    gone = sorted(step for step in known if step not in steps and step not in extremes)
    for step in gone[: max(0, len(known) - _MOST_SCORES)]:
        del known[step]
    return tuple(known[step] for step in sorted(known))
