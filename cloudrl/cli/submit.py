"""`cloudrl submit`: a recipe, completed for a cluster, as a job."""

from typing import Annotated, Any

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import (
    AddressOption,
    AfterOption,
    ClusterOption,
    DryRunOption,
    JobRequest,
    JsonOption,
    WatchOption,
    job_fields,
    requested_job,
    with_options,
)
from cloudrl.cli._terminal import Terminal
from cloudrl.cli.jobs import show_end


@with_options(asked=requested_job)
def submit(
    *,
    asked: JobRequest,
    after: AfterOption = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return once submitted.")] = False,
    watch: WatchOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    address: AddressOption = None,
) -> None:
    """Submit a job and follow it. Ctrl-C leaves it running. Exit code 4 if it fails.

    The cluster's agents start it again after a loss. If they cannot, a note says why.

    Files: ./x, ../x, ~/x, and x if it exists here, are uploaded from this machine. /x is a path on the nodes.
    owner/name is a model on the Hub. This applies to --model, --data, --reward and every override that names a file
    verl reads, such as data.train_files=./mine.parquet.

    Secrets: HF_TOKEN and the keys of the loggers in trainer.logger are taken from this shell if the job needs them;
    pass others with --env NAME. They reach the job through the cluster's agents and never appear in a log. The agents
    cannot deliver them on a plain Ray cluster, before Ray 2.43, or with pip, uv, conda or a container in the runtime
    environment. Then only what --env names is sent, through Ray, which writes it to its logs; a note says so.
    """
    from cloudrl.errors import JobFailed
    from cloudrl.jobs.handle import way_back
    from cloudrl.sdk.choose import Purpose
    from cloudrl.sdk.find import find
    from cloudrl.sdk.submission import follow, prepare
    from cloudrl.sdk.submission import submit as send
    from cloudrl.sdk.watching import watch as watch_job

    job_spec, job_options, _ = asked
    with Terminal(prints_job=not as_json) as terminal:
        with terminal.busy("looking at the cluster"):
            connection = find(cluster, address, purpose=Purpose.CHANGE).connection
        if dry_run:
            with terminal.busy("checking the job"):
                submission = prepare(connection, job_spec, job_options, on_progress=terminal)
            if submission.memory is not None:
                _output.lines(submission.memory.shown, is_data=False)
            fields = {**submission.redacted_request(), **submission.sent_before()}
            _output.result(submission.render(), fields, is_json=as_json)
            return
        with terminal.busy(f"waiting for {after}" if after else "checking and sending the job"):
            told: dict[str, Any] = {"confirm": terminal.confirm, "on_progress": terminal}
            job, last = send(connection, job_spec, job_options, after=after, **told), None
        try:
            if not no_wait:
                last = (watch_job if watch else follow)(job, on_progress=terminal)
        except JobFailed:
            if as_json:
                _output.as_json(job_fields(job, terminal.progress, followed=True))
            raise
    if no_wait:
        _output.hint(way_back(job.url))
    else:
        show_end(job)
    if as_json:
        _output.as_json(job_fields(job, last, followed=not no_wait))
