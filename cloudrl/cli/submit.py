"""`cloudrl submit`: a recipe, completed for a cluster, as a job."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cloudrl.cli import _output, _submission
from cloudrl.cli._option_groups import with_options
from cloudrl.cli._target import AddressOption, ClusterOption, connect


@with_options(submit_options=_submission.submit_options)
def submit(
    recipe: _submission.RecipeArgument,
    overrides: _submission.OverridesArgument = None,
    *,
    submit_options: dict[str, Any],
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not follow the job.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be sent, secrets masked.")
    ] = False,
    as_json: _submission.JsonOption = False,
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
    from cloudrl.cli._follow import target_options, way_back

    job, options = _submission.load(recipe, overrides, submit_options)
    prepared = _submission.prepared_for(connect(cluster, address), job, options)
    if dry_run:
        shown = prepared.submission
        everything = {**shown.redacted_request(), **shown.sent_before()}
        _output.as_json(everything) if as_json else _output.data(shown.render())
        return
    handle, target = _submission.send(prepared), target_options(cluster, address)
    if not as_json:
        _output.data(handle.url)
    if no_wait:
        _output.hint(way_back(handle, target))
        last = None
    else:
        last = _submission.follow(handle, target, as_json=as_json)
        _output.note(f"{handle.submission_id} succeeded; checkpoints are in {handle.checkpoint_dir}")
    if as_json:
        _output.as_json(_submission.result(handle, last, followed=not no_wait))
