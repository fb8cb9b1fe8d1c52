"""The cluster that a job needs, and whether the two go together, before anything is paid for."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloudrl.errors import InputError
from cloudrl.jobs.conversion import convert_data
from cloudrl.jobs.data_files import read_tables
from cloudrl.jobs.draft import Machines, Snapshot
from cloudrl.jobs.local_files import HUB_ID, inspect_files, is_marked
from cloudrl.jobs.memory_runs import read_runs
from cloudrl.jobs.model_files import find_model_configs
from cloudrl.jobs.prompt_lengths import find_prompt_lengths
from cloudrl.jobs.reward_check import examine_reward
from cloudrl.jobs.services import needed_services
from cloudrl.options.job import SubmitOptions
from cloudrl.protocol.data_sets import BUILT_IN
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.options import MADE_ON_NODES
from cloudrl.providers.model import Plan
from cloudrl.providers.registry import provider
from cloudrl.spec import Cluster, DataSet, Gpu, Job
from cloudrl.spec.cluster import ROLLOUTS
from cloudrl.spec.services import agent_service
from cloudrl.transport import Connection, inspect_cluster
from cloudrl.verl.releases import RELEASES


def cluster_for_job(job: Job, options: SubmitOptions) -> dict[str, Any]:
    """Fields of a cluster for a job: as many nodes and GPUs as its recipe is made for, its data, model and services.

    What is on this machine travels with the job instead; what the nodes have already is left to them.
    """
    data = [name for name in options.data or job.data if _is_prepared(name)]
    model = options.model or job.model
    fields = {
        "nodes": job.nodes or 1,
        "gpu": job.gpu,
        "data": data or None,
        "services": list(needed_services(job, options.env)) or None,
        "models": [model] if model is not None and _is_fetched(model) else None,
        "verl": job.verl if job.device == "gpu" and any(job.verl == release.verl for release in RELEASES) else None,
        "rollout": job.rollout if job.rollout in ROLLOUTS and job.device == "gpu" else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def expected_snapshot(
    planned: Plan, job: Job, options: SubmitOptions, *, shell: Mapping[str, str] | None = None
) -> Snapshot:
    """What planning the job is going to look at once the cluster is up; data that verl cannot read is converted."""
    facts, here = expected_facts(planned, job), provider(planned.provider).nodes_are_here
    files = convert_data(job, options, inspect_files(job, options), prepared=facts.data, nodes_are_here=here)
    may_install = bool(planned.cluster.setup or planned.cluster.image)
    return Snapshot(
        facts, files, shell=shell or {}, is_expected=True,
        nodes_are_here=here, models=find_model_configs(job, options, files),
        runs=read_runs(), prompts=find_prompt_lengths(job, options, files),
        machines=_machines(planned), tables=read_tables(job, options, files, nodes_are_here=here),
        reward=examine_reward(job, options, files, nodes_are_here=here, may_install=may_install),
    )  # fmt: skip


def _machines(planned: Plan) -> Machines:
    cluster = planned.cluster
    price = planned.price.per_hour if planned.price is not None else cluster.price_per_hour
    return Machines(
        has_own_disks=planned.has_own_disks,
        price_per_hour=price,
        max_cost=cluster.max_cost,
        setup=tuple(cluster.setup),
    )


def expected_facts(planned: Plan, job: Job) -> ClusterFacts:
    """The cluster as a job is going to find it.

    A number of GPUs that is left open counts as the one that the recipe is made for.
    """
    facts, made_for = planned.facts, Gpu.exact_count(job.gpu)
    return facts if facts.gpus_per_node else replace(facts, gpus_per_node=8 if made_for is None else made_for)


_COMPARED = frozenset({"name", "nodes", "gpu", "data", "models", "services"})
"""Fields that a cluster which is up has to have (`find_running`)."""


def not_applied(requested: Mapping[str, Any]) -> list[str]:
    """Those of the requested fields that make no difference to a cluster that is up."""
    return sorted(requested.keys() - _COMPARED)


def find_running(declared: Cluster, requested: Mapping[str, Any], *, on: str) -> Connection | None:
    """The cluster of that name if it is up and fits; None if absent.

    Args:
        declared: What would be started.
        requested: Those of its fields that the user has named: nodes, gpu.
        on: The provider.

    Raises:
        InputError: It is not READY, or another one than is asked for.
    """
    where, name = provider(on), declared.name
    if not any(cluster.has_agent and not cluster.is_over and not cluster.owner for cluster in where.list(name)):
        return None
    status = where.status(name)
    if status.is_over:
        return None
    if not status.is_ready:
        raise InputError(
            f"cluster {name!r} exists but is not READY: {status.phase}",
            hint=f"Wait for it: cloudrl status {name} --watch\nEnd it: cloudrl down {name}",
        )
    connection = where.attach(name)
    shape = inspect_cluster(connection)
    _check_same(requested, shape)
    _check_prepared(declared, shape)
    return connection


def _check_same(requested: Mapping[str, Any], cluster: ClusterFacts) -> None:
    """Refuse one with another number of nodes, or of GPUs on each, than the user has named."""
    for count, available, what in (
        (requested.get("nodes"), cluster.gpu_nodes, "nodes"),
        (Gpu.exact_count(requested.get("gpu")), cluster.gpus_per_node if cluster.device == "gpu" else 0, "GPUs a node"),
    ):
        if count is not None and count != available:
            raise InputError(
                f"cluster {cluster.name!r} is up with {available} {what}, but {count} are requested",
                hint=f"Take it as it is: leave the option out\nEnd it first: cloudrl down {cluster.name}\n"
                "Another one: --cluster NAME",
            )


def _check_prepared(declared: Cluster, cluster: ClusterFacts) -> None:
    """Refuse one that does not have what the job reads and asks."""
    for what, requested, available in (
        ("data", _names(declared), cluster.data),
        ("model", declared.models, cluster.models),
        ("service", [agent_service(service).label for service in declared.services], cluster.services),
    ):
        missing = [name for name in requested if name not in available]
        if missing:
            raise InputError(
                f"cluster {cluster.name!r} is up and has not prepared {what} {missing[0]!r} "
                f"(it has: {', '.join(available) or 'none'})",
                hint=f"End it first: cloudrl down {cluster.name}\nAnother one: --cluster NAME",
            )


def _names(cluster: Cluster) -> list[str]:
    return [data_set.name if isinstance(data_set, DataSet) else data_set for data_set in cluster.data]


def _is_prepared(name: str) -> bool:
    """Whether the cluster can make this data set: a built-in one, or one on the Hub that is not a path here."""
    return name in BUILT_IN or (bool(HUB_ID.fullmatch(name)) and not is_marked(name) and not Path(name).exists())


def _is_fetched(model: str) -> bool:
    """Whether the cluster can have this model: one on the Hub, or one that cloudrl makes. A folder needs `./`."""
    return model in MADE_ON_NODES or (bool(HUB_ID.fullmatch(model)) and not is_marked(model))
