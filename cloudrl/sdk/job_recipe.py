"""A recipe as a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cloudrl import recipes

if TYPE_CHECKING:
    import os

    from cloudrl.spec import Job


def recipe(
    name_or_path: str | os.PathLike[str],
    *,
    model: str | None = None,
    algorithm: str | None = None,
    **changes: Any,
) -> Job:
    """A recipe by its name, or a job of your own by the path of its file.

    Args:
        name_or_path: one of `cloudrl.recipes.names()`, or a `.yml` file.
        model: another model than the recipe's.
        algorithm: another algorithm than the recipe's, one of `cloudrl.recipes.algorithms()`.
        changes: other fields of `Job`, for example `overrides={"trainer.test_freq": 5}`, which are added.

    Raises:
        SpecError: there is no such recipe or algorithm, or its file is none.
        SpecError: a change does not fit.
    """
    job = recipes.load(name_or_path)
    if algorithm is not None:
        job = recipes.with_algorithm(job, algorithm)
    job = job.with_overrides(changes.pop("overrides", {}))
    return job.replace(**({"model": model} if model else {}), **changes)
