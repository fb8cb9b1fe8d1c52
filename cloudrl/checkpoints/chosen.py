"""Which steps `checkpoints prune` keeps for good in place of those that durable jobs keep. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cloudrl.errors import InputError
from cloudrl.protocol.durable_jobs import DurableJob, Score
from cloudrl.saves.inventory import Inventory
from cloudrl.saves.keeping import mark_kept, parse_best
from cloudrl.saves.names import of_run


def mark_chosen(
    inventory: Inventory, jobs: Iterable[DurableJob], *, every: int, best: str, run: str | None = None
) -> Inventory:
    """The same, with these steps of each run kept for good, and no others.

    Args:
        inventory: with what durable jobs keep.
        jobs: the newest of each run, with the values that steps of the run have.
        every: steps that are multiples of it; 0 for none.
        best: the metric whose best step stays, `min:METRIC` for the lowest; "" for none.
        run: this run alone.

    Raises:
        InputError: it names no metric, or no job has recorded values of it for a run.
    """
    of_runs = {job.run: job for job in jobs}
    names = sorted({checkpoint.run for checkpoint in inventory.checkpoints if run in (None, checkpoint.run)})
    marked = replace(inventory, checkpoints=tuple(replace(each, kept="") for each in inventory.checkpoints))
    for name in names:
        scores = _scores(of_runs.get(name), name, best) if best else ()
        chosen = DurableJob(name, name, "", {}, 0.0, keep_every=every, keep_best=best, scores=scores)
        marked = mark_kept(marked, chosen)
    return marked


def _scores(job: DurableJob | None, run: str, best: str) -> tuple[Score, ...]:
    """The recorded values that steps of a run have of a metric."""
    metric, _ = parse_best(best)
    known = {parse_best(keeping.best)[0]: keeping.scores for keeping in (job.keepings if job else ()) if keeping.best}
    if not known.get(metric):
        others = "\n".join(f"Known: --keep-best {name}" for name in sorted(known) if known[name])
        raise InputError(
            f"{of_run(run)}no durable job has recorded values of {metric}, so its best step is not known",
            hint=others or "Only multiples: --keep-every 100\nAnother run: --name RUN",
        )
    return known[metric]
