"""`cloudrl submit`: a recipe, completed for a cluster, as a job."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cloudrl.cli import _output, _submit_options
from cloudrl.cli._option_groups import with_options
from cloudrl.cli._options import AddressOption, ClusterOption, DryRunOption, JsonOption, RecipeArgument


@with_options(options=_submit_options.submit_options)
def submit(
    recipe: RecipeArgument,
    overrides: _submit_options.OverridesArgument = None,
    *,
    options: dict[str, Any],
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not follow the job.")] = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    address: AddressOption = None,
) -> None:
    """Submit a job and follow it. Ctrl-C leaves it running. Exit code 4 when it fails.

    Files: ./x, ../x, ~/x, and x where it exists here, are of this machine and sent along; /x is a path on the nodes;
    owner/name is a model on the Hub. That holds for --model, --data, --reward and every override under which verl
    reads a file, such as data.train_files=./mine.parquet.

    Secrets: HF_TOKEN and the keys of the loggers in trainer.logger are passed on from this shell where the job needs
    them, others with --env NAME. They reach the job through the cluster's agents, and no log. On a plain Ray cluster,
    with pip, uv, conda or a container in the runtime environment, or before Ray 2.43, Ray passes on what --env names,
    and writes it into its logs; the shell's stay here, and a note says so.
    """
    from cloudrl.cli._terminal import Terminal
    from cloudrl.errors import JobFailed
    from cloudrl.sdk.find import find
    from cloudrl.sdk.submission import follow, prepare, send, way_back

    loaded, wanted = _submit_options.load(recipe, overrides, options)
    with Terminal(on_job=(lambda _job: None) if as_json else None) as terminal:
        connection = find(cluster, address).connection
        sent = prepare(connection, loaded, wanted, on_progress=terminal)
        if dry_run:
            fields = {**sent.redacted_request(), **sent.sent_before()}
            _output.result(sent.render(), fields, is_json=as_json)
            return
        job, last = send(connection, sent, on_progress=terminal), None
        try:
            last = None if no_wait else follow(job, on_progress=terminal)
        except JobFailed:
            if as_json:
                _output.as_json(_submit_options.job_fields(job, None, followed=True))
            raise
    if no_wait:
        _output.hint(way_back(job))
    else:
        _output.note(f"{job.submission_id} succeeded; checkpoints are in {job.checkpoint_dir}")
    if as_json:
        _output.as_json(_submit_options.job_fields(job, last, followed=not no_wait))
