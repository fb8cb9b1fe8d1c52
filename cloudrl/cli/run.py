"""`cloudrl run`: a recipe from nothing to a trained model, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cloudrl.cli import _cluster_options, _output, _submit_options
from cloudrl.cli._option_groups import with_options
from cloudrl.cli._options import (
    ClusterOption,
    DryRunOption,
    JsonOption,
    OnOption,
    RecipeArgument,
    YesOption,
    given,
)

_DOWN = Annotated[
    bool | None,
    typer.Option(
        "--down/--keep",
        help="End the cluster with the job, or not; asked if not given, and with --down, too, "
        "where checkpoints would be lost or the cluster was up before, unless -y.",
    ),
]


@with_options(options=_submit_options.submit_options, cluster_options=_cluster_options.cluster_options)
def run(
    recipe: RecipeArgument,
    overrides: _submit_options.OverridesArgument = None,
    cluster: ClusterOption = None,
    on: OnOption = None,
    *,
    options: dict[str, Any],
    cluster_options: dict[str, Any],
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Merge the model into this new folder at the end."),
    ] = None,
    down: _DOWN = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    yes: YesOption = False,
) -> None:
    """Check, start a cluster, submit, follow, bring the model home, and end the cluster if asked to.

    A cluster of that name that is up and fits is used; a fleet is created if none fits, after a question with its
    price. What is not given is the recipe's. Ctrl-C at any point says what goes on.
    """
    from cloudrl.cli._terminal import Terminal
    from cloudrl.sdk.runs import plan_run

    job, wanted = _submit_options.load(recipe, overrides, options)
    fields = _cluster_options.cluster_fields({**cluster_options, **given(name=cluster)})
    request = plan_run(job, wanted, fields, on)
    with Terminal(yes=yes, on_job=(lambda _job: None) if as_json else None) as terminal:
        if dry_run:
            _output.data(request.render(on_progress=terminal))
            return
        done = request.execute(
            to=to,
            down=down if down is not None or _output.is_interactive() else False,
            create_fleet=True,
            confirm=terminal.confirm,
            on_progress=terminal,
        )
    if as_json:
        followed = _submit_options.job_fields(done.job, done.progress, followed=True)
        _output.as_json({**followed, "model": done.model, "cluster_ended": done.ended})
    elif done.model is not None:
        _output.data(str(done.model))
