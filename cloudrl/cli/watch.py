"""`cloudrl watch`: a job and its cluster on one screen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from cloudrl.cli import _output
from cloudrl.cli._options import AddressOption, ClusterOption, JsonOption, option
from cloudrl.cli._terminal import Terminal
from cloudrl.cli.jobs import JobArgument, show_end

if TYPE_CHECKING:
    from cloudrl.sdk.callbacks import Update

CurveOption = Annotated[
    list[str] | None, option("KEY", "Metric of verl's to draw as well, such as actor/entropy. Repeatable.", "--curve")
]
_JSON_EVERY_S = 5.0


def watch(
    job_id: JobArgument = None,
    curve: CurveOption = None,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    address: AddressOption = None,
) -> None:
    """Watch a job until it ends: curves, time per step, nodes, cost, warnings, log. Exit code 4 if it fails.

    Ctrl-C leaves the job running. Where there is no terminal, a line per step and per warning is printed. With --json,
    print one object per event: step, progress, look (nodes, cost, warnings), ended.
    """
    from cloudrl.sdk.find import find_job
    from cloudrl.sdk.watching import watch as watch_job

    with Terminal() as terminal, terminal.busy("looking for the job"):
        job = find_job(job_id, cluster, address, on_progress=terminal)
    if as_json:
        watch_job(job, on_progress=_print, every_s=_JSON_EVERY_S)
        return
    with Terminal(curves=curve or ()) as terminal:
        watch_job(job, on_progress=terminal)
    show_end(job)


def _print(update: Update) -> None:
    from cloudrl.jobs import Ended, Progress, Step
    from cloudrl.jobs.format import as_fields
    from cloudrl.jobs.look import Look, look_fields
    from cloudrl.sdk.callbacks import Notice

    if isinstance(update, Notice):
        _output.note(update.text)
    elif isinstance(update, Look):
        _output.data(json.dumps(look_fields(update)))
    elif isinstance(update, (Step, Progress, Ended)):
        _output.data(json.dumps(as_fields(update)))
