"""`cloudrl run`: a recipe from nothing to a trained model, in one command."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import (
    AfterOption,
    DryRunOption,
    JobRequest,
    JsonOption,
    NewClusterOption,
    OnOption,
    WatchOption,
    YesOption,
    cluster_options,
    declared_fields,
    explicit,
    job_fields,
    option,
    requested_job,
    with_options,
)
from cloudrl.cli._terminal import Terminal

_DOWN = Annotated[
    bool | None,
    typer.Option(
        "--down/--keep",
        help="Stop the cluster when the job ends, or keep it. Asks if not given; --down also asks (unless -y) if "
        "checkpoints would be lost or the cluster was already up.",
    ),
]


@with_options(asked=requested_job, declared=cluster_options)
def run(
    cluster: NewClusterOption = None,
    on: OnOption = None,
    *,
    asked: JobRequest,
    declared: dict[str, Any],
    to: Annotated[Path | None, option("DIR", "Merge the trained model into this new folder.", "--to")] = None,
    push: Annotated[
        str | None,
        option("ORG/NAME", "Publish the trained model in this private repository of the Hub, from the head.", "--push"),
    ] = None,
    down: _DOWN = None,
    after: AfterOption = None,
    watch: WatchOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    yes: YesOption = False,
) -> None:
    """Run a recipe from start to finish, in one command.

    Checks everything, starts a cluster, trains, merges the model with --to, and stops the cluster with --down. A
    running cluster of that name is used if it fits. If no fleet fits, one is created after you confirm its price.
    Options that you leave out come from the recipe. Ctrl-C at any point says what keeps running.
    """
    from cloudrl.errors import JobFailed
    from cloudrl.sdk.runs import plan_run

    job, job_options, of_script = asked
    fields = {**of_script, **declared_fields({**declared, **explicit(name=cluster)})}
    request = plan_run(job, job_options, fields, on)
    with Terminal(yes=yes, prints_job=not as_json) as terminal:
        if dry_run:
            with terminal.busy("checking the job"):
                text = request.render(on_progress=terminal)
            if (memory := request.submission.memory) is not None:
                _output.lines(memory.shown, is_data=False)
            _output.data(text)
            return
        with terminal.busy("checking the job"):
            request.check_silently(to)
        try:
            done = request.execute(
                to=to,
                push=push,
                down=down if down is not None or _output.is_interactive() else False,
                create_fleet=True,
                after=after,
                watch=watch,
                confirm=terminal.confirm,
                on_progress=terminal,
            )
        except JobFailed:
            if as_json:
                _output.as_json(_job_fields(terminal))
            raise
    if as_json:
        _output.as_json({**_job_fields(terminal), "model": done.model, "url": done.url, "cluster_ended": done.ended})
        return
    for result in (done.model, done.url):
        if result is not None:
            _output.data(str(result))


def _job_fields(terminal: Terminal) -> dict[str, Any]:
    """The job that was followed to its end, if it came so far; its cluster may be gone."""
    job, ended = terminal.job, terminal.ended
    if job is None or ended is None:
        return {}
    return job_fields(job, terminal.progress, followed=True, status=ended.status)
