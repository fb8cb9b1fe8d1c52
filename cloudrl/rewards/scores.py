"""The scores of right, wrong and empty answers, row by row, and in one sentence."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from cloudrl.rewards.rows import EMPTY, RIGHT, SOLUTION, WRONG, Row
from cloudrl.rewards.trial import Trial
from cloudrl.units import duration_text


@dataclass(frozen=True)
class RowScores:
    """The scores of one row.

    Attributes:
        row: the row.
        right: of the right answer, in the form that tells it best from a wrong one; None if no right answer could be
            made, or it got no score.
        wrong: of a wrong answer in the same form; None likewise.
        empty: of the empty answer.
        form: the form.
    """

    row: Row
    right: float | None
    wrong: float | None
    empty: float | None
    form: str


def scores_by_row(trial: Trial) -> tuple[RowScores, ...]:
    """Right, wrong and empty answer of each row that was scored.

    A function reads one form of an answer. So the form counts in which the right one is furthest above the wrong one.
    """
    return tuple(_row_scores(trial, index) for index in range(len(trial.rows)))


def _row_scores(trial: Trial, index: int) -> RowScores:
    scores: dict[tuple[str, str], float] = {
        (each.answer.kind, each.answer.form): each.score
        for each in trial.scored
        if each.answer.row == index and each.score is not None
    }
    wrongs = {form: score for (kind, form), score in scores.items() if kind == WRONG}
    rights = {form: score for (kind, form), score in scores.items() if kind == RIGHT}
    empty = scores.get((EMPTY, ""))
    if not rights:
        any_wrong = next(iter(wrongs.items()), ("", None))
        return RowScores(trial.rows[index], None, any_wrong[1], empty, any_wrong[0])
    beside = {form: wrongs.get(form, min(wrongs.values(), default=0.0)) for form in rights}
    best = max(rights, key=lambda form: (rights[form] - beside[form], rights[form], form != SOLUTION))
    return RowScores(trial.rows[index], rights[best], beside[best] if wrongs else None, empty, best)


def summary(function: str, file: str, trial: Trial) -> str:
    """One sentence about a function that has scored answers; empty if it has not."""
    rows, per_call = [each for each in scores_by_row(trial) if each.empty is not None], trial.seconds_per_call
    if not rows or per_call is None:
        return ""
    columns = {name: _known(getattr(row, name) for row in rows) for name in (RIGHT, WRONG, EMPTY)}
    scores = [f"{name} {statistics.fmean(known):.4g}" for name, known in columns.items() if known]
    kind = "made-up row" if rows[0].row.is_made_up else "row"
    return (
        f"reward: {function} of {file} scores {', '.join(scores)} "
        f"(mean of {len(rows)} {kind}{'s' * (len(rows) > 1)}, {time_text(per_call)} an answer)"
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def time_text(seconds: float) -> str:
    """A time that may be less than a second: `0.03 ms`, `12 ms`, `2.1 s`."""
    if seconds >= 1:
        return duration_text(seconds)
    return f"{seconds * 1000:.2g} ms" if seconds < 0.0995 else f"{seconds * 1000:.0f} ms"
