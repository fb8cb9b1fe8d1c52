"""The one look at the world on which a job is planned: the cluster, what it has saved, and this machine's files."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from cloudrl.jobs.local_files import LocalFiles, look
from cloudrl.jobs.resume import continues_a_run
from cloudrl.saves.aggregate import cluster_inventory
from cloudrl.transport import inspect_cluster
from cloudrl.transport.ray_client import PACKAGE_LIMIT_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cloudrl.jobs.options import SubmitOptions
    from cloudrl.saves.inventory import Inventory
    from cloudrl.spec import Job
    from cloudrl.spec.shape import ClusterShape
    from cloudrl.transport import AgentClient, Connection


@dataclass(frozen=True)
class Saved:
    """What the nodes of a cluster have saved."""

    inventory: Inventory
    addresses: Mapping[int, str]
    """Node -> IP address."""


@dataclass(frozen=True)
class Snapshot:
    """All that the passes look at. They ask nobody, so the same snapshot gives the same submission."""

    cluster: ClusterShape
    files: LocalFiles
    saved: Saved | None = None
    """None where it does not matter, or nobody can say."""
    shell: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The variables from which secrets that the job needs are taken."""
    now: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    """For names."""
    package_limit_bytes: int = PACKAGE_LIMIT_BYTES
    """The most that the cluster takes in one package."""
    is_expected: bool = False
    """Whether there is no cluster yet, so that nobody knows what it has saved."""


def take_snapshot(
    connection: Connection,
    job: Job,
    options: SubmitOptions,
    *,
    here: Path | None = None,
    shell: Mapping[str, str] | None = None,
) -> Snapshot:
    """Look at the cluster and at this machine; nothing changes, and of files only Python code is read.

    Raises:
        InputError: The working directory is none.
        CheckpointError: A node names a file that is no path below a folder.
        ConnectionFailed: Nobody answers, or another cluster does.
        ClusterFailed: The cluster has failed, or is not ready yet.
    """
    cluster = inspect_cluster(connection)
    files = look(job, options, here=here, nodes_are_here=cluster.nodes_are_here)
    agent = connection.agent() if continues_a_run(job, options) else None
    return Snapshot(cluster, files, None if agent is None else _saved(agent), shell or {})


def _saved(agent: AgentClient) -> Saved:
    nodes = agent.status()["nodes"]
    addresses = {int(node["rank"]): str(node["ip"]) for node in nodes}
    return Saved(cluster_inventory(nodes, agent.inventory), addresses)
