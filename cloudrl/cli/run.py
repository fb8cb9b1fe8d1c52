"""`cloudrl run`: a recipe from nothing to a trained model, in one command."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloudrl.cli import _cluster_options as options
from cloudrl.cli import _data_options as of_data
from cloudrl.cli import _output, _submission
from cloudrl.cli._interrupts import cluster_goes_on, nothing_started, typed_again
from cloudrl.cli._option_groups import with_options
from cloudrl.cli._teardown import after_run, report_still_running
from cloudrl.cli._write_file import YesOption  # noqa: TC001 - Typer reads the annotations
from cloudrl.errors import CloudrlError, ConnectionFailed, Interrupted, JobFailed
from cloudrl.providers.model import NoFleet
from cloudrl.providers.registry import default_provider, ensure_name_free, provider

if TYPE_CHECKING:
    from collections.abc import Callable

    from cloudrl.jobs import SubmitOptions
    from cloudrl.providers.model import Plan, Provider
    from cloudrl.spec import Cluster, Job
    from cloudrl.transport import Connection

_NAME = Annotated[str, typer.Option("--cluster", "-c", metavar="NAME", help="Name of the cluster.")]
_ON = Annotated[
    str | None,
    typer.Option("--on", metavar="PROVIDER", help="local or dstack; dstack if it needs GPUs, unless given."),
]
_NODES = Annotated[int | None, typer.Option(help="How many nodes; the recipe's number unless given.")]
_GPU = Annotated[
    str | None,
    typer.Option(help="GPUs of each node, as dstack writes them: 80GB:8; the recipe's unless given."),
]
_DRY_RUN = Annotated[bool, typer.Option("--dry-run", help="Show cluster and job; nothing is started.")]
_TO = Annotated[
    Path | None, typer.Option("--to", metavar="DIR", help="At the end, merge the model into this folder.")
]
_DOWN = Annotated[
    bool | None,
    typer.Option(
        "--down/--keep",
        help="End the cluster with the job, or not; asked if not given, and with --down, too, "
        "where checkpoints would be lost or the cluster was up before, unless -y.",
    ),
]


@dataclass(frozen=True)
class RunRequest:
    """What is going to be started, and what for."""

    job: Job
    options: SubmitOptions
    plan: Plan
    asked: dict[str, Any]

    @property
    def cluster(self) -> Cluster:
        """As it is declared."""
        return self.plan.cluster

    @property
    def home(self) -> Provider:
        """Where the cluster is going to be."""
        return provider(self.plan.provider)


@dataclass
class RunProgress:
    """How far a run has come.

    Attributes:
        again: the command that goes on from there.
        is_submitted: whether the cluster has taken the job.
        price_per_hour: US dollars for the cluster when it was up; None where nobody says.
    """

    again: str
    is_submitted: bool = False
    price_per_hour: float | None = None


@with_options(submit_options=_submission.submit_options, described=of_data.fields, shape=options.shape)
def run(
    recipe: _submission.RecipeArgument,
    overrides: _submission.OverridesArgument = None,
    cluster: _NAME = "ray-cluster",
    on: _ON = None,
    nodes: _NODES = None,
    gpu: _GPU = None,
    *,
    submit_options: dict[str, Any],
    shape: dict[str, Any],
    described: dict[str, Any],
    down: _DOWN = None,
    dry_run: _DRY_RUN = False,
    yes: YesOption = False,
    to: _TO = None,
) -> None:
    """Check, start a cluster, submit, follow, bring the model home, and end the cluster if asked to.

    A cluster of that name that is up and fits is used; a fleet is created if none fits, after a question with its
    price. Data sets and model of the job are prepared on the cluster. Ctrl-C at any point says what goes on.
    """
    request = _build_request(
        recipe, overrides, submit_options, described, {**shape, "name": cluster}, on, nodes, gpu
    )
    with nothing_started():
        _refuse_existing(to)
        if _validate_and_preview(request, dry_run=dry_run):
            return
        ensure_name_free(cluster, request.plan.provider)
        there = _find_running(request)
    end = partial(after_run, request.home, cluster, down=down, yes=yes, reused=there is not None)
    _train_and_end(
        request, there or _start(request, yes=yes), to, end, ends_in_vain=bool(down) and there is None
    )


def _train_and_end(
    request: RunRequest,
    connection: Connection,
    to: Path | None,
    end: Callable[..., None],
    *,
    ends_in_vain: bool,
) -> None:
    """From a cluster that is up to what becomes of it; it is ended in vain if no job came to be submitted."""
    name = request.cluster.name
    stage = RunProgress(typed_again(sys.argv[1:]))
    try:
        with cluster_goes_on(request.home, name, lambda: stage.again):
            stage.price_per_hour = _price_of(request.home, name)
            _train(request, connection, to, stage)
    except JobFailed:
        _end_after_error(partial(end, price_per_hour=stage.price_per_hour))
        raise
    except Interrupted:  # it has said what goes on
        raise
    except CloudrlError:
        if ends_in_vain and not stage.is_submitted:
            _end_after_error(partial(end, price_per_hour=stage.price_per_hour))
        else:
            report_still_running(request.home, name)
        raise
    end(price_per_hour=stage.price_per_hour)


def _price_of(home: Provider, name: str) -> float | None:
    """Seen while it can be: at the end the server may be away."""
    try:
        return home.status(name).price_per_hour
    except CloudrlError:
        return None


def _end_after_error(end: Callable[[], None]) -> None:
    """The error that comes first is the one that counts."""
    try:
        end()
    except CloudrlError as second:
        _output.note(f"then, while the cluster was being ended: {second.message}")
        _output.hint(second.hint or "cloudrl status")


def _refuse_existing(to: Path | None) -> None:
    """Before anything is paid for."""
    if to is not None:
        from cloudrl.checkpoints.staging import refuse_existing

        refuse_existing(to)


def _build_request(
    recipe: str, overrides: list[str] | None, submit_options: dict[str, Any], described: dict[str, Any],
    shape: dict[str, Any], on: str | None, nodes: int | None, gpu: str | None,
) -> RunRequest:  # fmt: skip
    """The cluster: what the recipe is made for, and what the options say in its place."""
    from cloudrl.jobs.run_plan import cluster_for_job

    job, job_options = _submission.load(recipe, overrides, submit_options)
    asked = {key: value for key, value in (("nodes", nodes), ("gpu", gpu)) if value is not None}
    fields = {**cluster_for_job(job, job_options), **asked}
    fields["gpu"] = options.gpus(fields.get("gpu"))
    if shape["image"] is not None:  # it decides by itself
        fields.pop("verl", None)
    place = provider(on) if on is not None else default_provider(gpus=fields["gpu"] is not None)
    given = any(value for value in described.values())
    sets = job_options.data if given else fields.get("data") or ()
    fields["data"] = of_data.described(list(sets), described, local=place.nodes_are_here) or None
    shape = {key: value for key, value in shape.items() if value is not None}
    return RunRequest(job, job_options, place.plan(options.cluster({**fields, **shape})), asked)


def _validate_and_preview(request: RunRequest, *, dry_run: bool) -> bool:
    """Check whether job and cluster go together; show both in a dry run."""
    from cloudrl.jobs import run_plan

    run_plan.validate(request.plan, request.job, request.options)
    if dry_run:
        submission = _submission.preview(request.plan, request.job, request.options)
        plan = request.plan
        _output.data((plan.priced() if plan.needs_price else plan).render())
        _output.data(submission.render())
    return dry_run


def _find_running(request: RunRequest) -> Connection | None:
    from cloudrl.jobs.run_plan import find_running

    connection = find_running(request.cluster, request.asked, on=request.plan.provider)
    if connection is not None:
        _output.note(f"cluster {request.cluster.name} is up, and is used")
    return connection


def _create_fleet(error: NoFleet, name: str, *, yes: bool) -> str:
    """Offer to create a fleet where no machine can be had without one; its name."""
    from cloudrl.cli.fleet import make
    from cloudrl.render.fleet import fleet_to_dstack

    fleet = error.fleet
    if fleet is None:
        raise error
    _output.note(f"no fleet has or can get the machines of {name}; {fleet.name} would")
    with nothing_started(fleet.name):
        make(fleet_to_dstack(fleet), yes=yes, project=None, replace=False)
    return fleet.name


def _start(request: RunRequest, *, yes: bool) -> Connection:
    from cloudrl.cli.up import confirm_cost, start_and_watch

    fleet = None
    try:
        with nothing_started():
            plan = confirm_cost(request.plan, yes=yes)
    except NoFleet as error:
        fleet = _create_fleet(error, request.cluster.name, yes=yes)
        with nothing_started(fleet):
            plan = confirm_cost(request.plan, yes=yes)
    connection = start_and_watch(request.home, plan)
    _output.note(f"READY: {plan.name}, dashboard {connection.ray_url}")
    return connection


def _train(request: RunRequest, connection: Connection, to: Path | None, stage: RunProgress) -> None:
    """Submit, follow to the end, and merge the model, or say how."""
    from cloudrl.cli._merge_result import merge_result

    name = request.cluster.name
    handle = _submission.send(_submission.prepared_for(connection, request.job, request.options))
    stage.is_submitted = True
    stage.again = f"cloudrl jobs logs -f {handle.submission_id} --cluster {name}"
    _output.data(handle.url)
    _submission.follow(handle, f" --cluster {name}", as_json=False)
    merge = f"cloudrl checkpoints merge {name} --to {shlex.quote(str(to or './model'))}"
    stage.again = merge
    _output.note(
        f"{handle.submission_id} succeeded; checkpoints are in {handle.checkpoint_dir}{_kept(request.home, name)}"
    )
    if to is None:
        _output.hint(merge)
    else:
        _output.data(str(merge_result(handle, to).path.absolute()))


def _kept(home: Provider, name: str) -> str:
    """Where checkpoints stay, as the end of a sentence; "" while the server that knows is away."""
    try:
        kept = home.status(name).retention
    except ConnectionFailed:
        return ""
    return f", {kept.location}" if kept is not None else ""
