"""Which steps of a durable job stay for good: what is refused, warned of and noted before the job is sent."""

import difflib
from collections.abc import Iterator

from cloudrl.errors import InputError
from cloudrl.jobs.draft import JobDraft
from cloudrl.saves.keeping import LAST, parse_best
from cloudrl.spec.hydra import integer
from cloudrl.verl import keys
from cloudrl.verl.charts import ALL_VALIDATION, CHARTS

_VALIDATED, _FOLDER = ("val-", "val/"), "/"


def keeps_some(draft: JobDraft) -> bool:
    """Whether the user asks for steps that stay for good."""
    return bool(draft.options.keep_every or draft.options.keep_best)


def newest_kept(draft: JobDraft) -> int:
    """How many of the newest whole steps the agents keep; 0 for all."""
    asked = max(0, integer(draft.values.get(keys.CHECKPOINTS_KEPT)) or 0)
    return asked or (LAST if keeps_some(draft) else 0)


def refuse_without_durable(draft: JobDraft) -> Iterator[InputError]:
    """Without the agents, verl alone removes steps, and it knows of no exceptions."""
    option = "--keep-every" if draft.options.keep_every else "--keep-best"
    if keeps_some(draft):
        yield InputError(
            f"{option} is for durable jobs alone, whose old steps the agents remove",
            hint=f"Leave out --no-durable, or {option}\n"
            "Remove old steps by hand: cloudrl checkpoints prune --keep-last 2 --keep-every 100",
        )


def look_at_kept(draft: JobDraft) -> JobDraft:
    """The same, with what is refused, warned of and noted of the steps that stay."""
    bad = tuple(_bad_metric(draft))
    return draft.refused(*bad) if bad else draft.warning(*_odd_metric(draft)).noting(*_note(draft))


def _bad_metric(draft: JobDraft) -> Iterator[InputError]:
    """A metric that cannot be read, or of which the agents would hear nothing."""
    if draft.options.keep_best is None:
        return
    try:
        parse_best(draft.options.keep_best)
    except InputError as error:
        yield error
    logger = draft.values.get(keys.LOGGER)
    if logger is not None and "console" not in logger:
        yield InputError(
            f"--keep-best reads the metric in the job's log, and {keys.LOGGER}={logger} has no console",
            hint=f"{keys.LOGGER}=[console]",
        )


def _odd_metric(draft: JobDraft) -> Iterator[str]:
    """A metric that verl may never log, as far as is known before it runs."""
    text = draft.options.keep_best
    if text is None:
        return
    metric, is_lowest = parse_best(text)
    known = sorted({key for chart in CHARTS for key in (*chart.keys, *chart.band, chart.fallback) if key})
    is_validation = metric.startswith(_VALIDATED)
    if is_validation and (integer(draft.values.get(keys.TEST_FREQ)) or -1) <= 0:
        yield f"--keep-best: {metric} comes from validations, and the job has none; {keys.TEST_FREQ}=10 validates"
    elif not metric.startswith(ALL_VALIDATION) and not _is_known(metric, known):
        alike = difflib.get_close_matches(metric, known, 2, 0.6)
        there = f": do you mean {' or '.join(alike)}?" if alike else ""
        yield f"--keep-best: {metric} is not among the metrics that cloudrl knows of verl{there}"
    if "loss" in metric and not is_lowest:
        yield f"--keep-best: the step with the highest {metric} stays; for the lowest: --keep-best min:{metric}"


def _is_known(metric: str, known: list[str]) -> bool:
    return any(metric == key or (key.endswith(_FOLDER) and metric.startswith(key)) for key in known)


def _note(draft: JobDraft) -> Iterator[str]:
    """What stays, in one sentence."""
    options = draft.options
    if not keeps_some(draft):
        return
    stays = [f"each step that is a multiple of {options.keep_every}"] if options.keep_every else []
    if options.keep_best:
        metric, is_lowest = parse_best(options.keep_best)
        stays.append(f"the step with the {'lowest' if is_lowest else 'highest'} {metric}")
    newest = newest_kept(draft)
    yield (
        f"{'the newest step stays' if newest == 1 else f'the newest {newest} steps stay'} to go on from "
        f"({keys.CHECKPOINTS_KEPT}), and {' and '.join(stays)} for good"
    )
