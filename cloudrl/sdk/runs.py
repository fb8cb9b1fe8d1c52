"""A job from nothing: a cluster is found or started, and the job is submitted to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudrl import recipes
from cloudrl.errors import CheckpointError, CloudrlError, InputError, Interrupted
from cloudrl.jobs import JobHandle, SubmitOptions, submit
from cloudrl.providers.model import NoFleet
from cloudrl.providers.registry import default_provider
from cloudrl.sdk.cluster import Cluster
from cloudrl.sdk.fleet import Fleet
from cloudrl.sdk.running import RunningCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cloudrl.providers.model import Plan, Status
    from cloudrl.spec import Job


@dataclass(frozen=True)
class Run:
    """A job, and the cluster that it runs on."""

    cluster: RunningCluster
    job: JobHandle


def run(
    job: Job | str,
    overrides: Mapping[str, Any] | None = None,
    *,
    cluster: Cluster | str = "ray-cluster",
    on: str | None = None,
    create_fleet: bool = False,
    on_status: Callable[[Status], None] | None = None,
    **options: Any,
) -> Run:
    """Check, start a cluster, and submit: `cloudrl run`, without its questions.

    A cluster of that name that is up and fits is used.

    Args:
        job: what to run, or a recipe by its name or path.
        overrides: in verl's own keys.
        cluster: as it shall be, or only its name; then nodes, GPUs, data and model are the recipe's.
        on: the provider; None is dstack for a cluster with GPUs, and this machine for one without.
        create_fleet: on dstack, create a fleet if none fits.
        on_status: called with every look at the cluster while it comes up.
        options: as `RunningCluster.submit` takes them.

    Raises:
        InputError: job and cluster do not go together, or one of that name is up that does not fit.
        CapacityError: the provider cannot give what is asked for.
        ClusterFailed: the cluster did not become ready.
        CloudrlError: the job could not be submitted. A cluster that was started for it is ended again if the job was
            refused, and goes on otherwise; the message says which.
    """
    from cloudrl.jobs import run_plan

    job = recipes.load(job) if isinstance(job, str) else job
    data = options.pop("data", ())
    wished = SubmitOptions(
        overrides=overrides or {}, data=(data,) if isinstance(data, str) else tuple(data), **options
    )
    asked = cluster.explicit_fields() if isinstance(cluster, Cluster) else {}
    if isinstance(cluster, str):
        cluster = Cluster.load({"name": cluster, **run_plan.cluster_for_job(job, wished)})
    where = on or default_provider(gpus=cluster.device == "gpu").name
    plan = cluster.plan(where)
    run_plan.validate(plan, job, wished)
    there = run_plan.find_running(cluster, asked, on=where)
    if there is None and create_fleet:
        _create_fleet_if_none_fits(plan)
    running = (
        RunningCluster(there, provider=where)
        if there is not None
        else cluster.up(on=where, on_status=on_status)
    )
    return Run(running, _submitted(running, job, wished))


def _submitted(cluster: RunningCluster, job: Job, options: SubmitOptions) -> JobHandle:
    """Submit; whoever gets an error instead has no handle of a cluster that was started just now."""
    name = cluster.connection.name
    try:
        return submit(cluster.connection, job, options)
    except (InputError, CheckpointError) as error:  # refused: nothing was submitted
        if cluster.owned:
            cluster.down()
            raise type(error)(f"{error.message}; cluster {name} is ended again", hint=error.hint) from error
        raise
    except CloudrlError as error:
        hint = f"{error.hint or ''}\nEnd it: cloudrl down {name}".strip()
        raise type(error)(f"{error.message}; cluster {name} goes on", hint=hint) from error
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"interrupted; cluster {name} goes on", hint=f"End it: cloudrl down {name}"
        ) from error


def _create_fleet_if_none_fits(plan: Plan) -> None:
    try:
        plan.priced()
    except NoFleet as error:
        if error.fleet is None:
            raise
        Fleet.load(error.fleet.explicit_fields()).create()
