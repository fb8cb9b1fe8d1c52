"""What a cluster is going to be, as its declaration and its provider tell before it runs."""

from __future__ import annotations

import re

from cloudrl.data.request import folder_name
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.folders import USER_FILES
from cloudrl.protocol.options import MADE_ON_NODES
from cloudrl.saves.names import OURS
from cloudrl.spec import Cluster, CountRange, DataSet
from cloudrl.spec.services import agent_service
from cloudrl.spec.sizes import least_bytes
from cloudrl.verl.releases import Release

_OTHER_VERL = re.compile(r"\bverl\b")
"""In a set-up command it may mean that another release is installed."""


def planned_facts(
    cluster: Cluster,
    provider: str,
    *,
    checkpoint_dir: str,
    data_dir: str,
    secrets_dir: str,
    release: Release | None = None,
    verl_version: str | None = None,
) -> ClusterFacts:
    """The facts of a cluster before it runs, as its declaration and its provider tell them.

    Args:
        cluster: as it is declared.
        provider: its name.
        checkpoint_dir: where jobs are going to save; absolute, on every node.
        data_dir: below it, one folder a data set.
        secrets_dir: below it, one file a job; with RUN-ID in place of the id that the cluster gets when it starts.
        release: of verl, where the nodes run an image of ours.
        verl_version: that of the nodes, where they run no image.
    """
    version = release.verl if release else verl_version
    names = [data_set.name if isinstance(data_set, DataSet) else data_set for data_set in cluster.data]
    return ClusterFacts(
        name=cluster.name,
        id="",
        provider=provider,
        nodes=cluster.nodes,
        gpu_nodes=cluster.nodes,
        gpus_per_node=1 if cluster.device == "cpu" else cluster.gpus_per_node or 0,
        cpus_per_node=_most_cpus(cluster),
        gpu=cluster.gpu or "",
        memory_bytes=least_bytes(cluster.memory),
        shm_bytes=least_bytes(cluster.shared_memory) if cluster.gpu else 0,
        disk_bytes=least_bytes(cluster.disk),
        device=cluster.device,
        verl_version=None if any(map(_OTHER_VERL.search, cluster.setup)) else version,
        rollouts=(release.rollout,) if release else (),
        rollout_versions=_rollout_versions(cluster, release),
        places_controllers=True,
        asks_trainers=True,
        places_training=True,
        divides_nodes=True,
        checkpoint_dir=checkpoint_dir,
        files_dir=f"{checkpoint_dir}/{OURS}/{USER_FILES}",
        secrets_dir=secrets_dir,
        data={
            name: {part: f"{data_dir}/{folder_name(name)}/{part}.parquet" for part in ("train", "test")}
            for name in names
        },
        models={model: f"{data_dir}/models/{model}" if model in MADE_ON_NODES else model for model in cluster.models},
        services=tuple(agent_service(service).label for service in cluster.services),
        variables=tuple(sorted({*cluster.env, *cluster.secrets})),
    )


def _most_cpus(cluster: Cluster) -> int:
    """CPUs of a node at most, since a provider may take larger machines than the least; 0 without such a limit."""
    if cluster.cpu is None or cluster.device == "cpu":  # on CPUs, Ray counts slots
        return 0
    return CountRange.parse(cluster.cpu.rpartition(":")[2]).max or 0


def _rollout_versions(cluster: Cluster, release: Release | None) -> dict[str, str]:
    """What our image has, where no set-up command of the user's may install another."""
    if release is None or not release.rollout_version or any(release.rollout in line for line in cluster.setup):
        return {}
    return {release.rollout: release.rollout_version}
