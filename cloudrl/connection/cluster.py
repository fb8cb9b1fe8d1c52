"""What a job needs to know of the cluster it goes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cloudrl.errors import ClusterFailed, ConnectionFailed, Unauthorized

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudrl.connection.model import Connection


@dataclass(frozen=True)
class ClusterView:
    """One look at a cluster.

    Attributes:
        nodes: how many nodes it has.
        gpus_per_node: GPUs of each node; with device "cpu" these are slots that Ray only counts.
        device: "gpu" or "cpu"; None for a plain Ray cluster, which cannot tell slots from GPUs.
        checkpoint_dir: absolute, on every node; None for a plain Ray cluster, which does not say.
        data: data set -> {"train": path, "test": path}, on every node.
        models: model as asked for -> folder on every node, or its name again where the folders differ.
        rollouts: rollout engines in the image; none are known of a plain Ray cluster.
        provider: "local", "dstack" or "slurm"; None for a plain Ray cluster.
        files_dir: where users' files lie on every node, below their addresses; None where no agent takes them.
        secrets_dir: where the secrets of jobs lie on every node; None where no agent takes them.
        ray_version: the release of Ray; None for a plain Ray cluster.
        ray_session: what Ray calls this start of itself; None where no agent says it.
    """

    name: str
    id: str | None
    nodes: int
    gpus_per_node: int
    device: str | None
    checkpoint_dir: str | None = None
    data: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    verl_version: str | None = None
    rollouts: tuple[str, ...] = ()
    provider: str | None = None
    files_dir: str | None = None
    secrets_dir: str | None = None
    ray_version: str | None = None
    ray_session: str | None = None


def view(connection: Connection) -> ClusterView:
    """Look at the cluster behind a connection.

    Raises:
        ConnectionFailed: nobody answers, or another cluster does.
        ClusterFailed: the cluster has failed, or is not ready yet.
    """
    agent = connection.agent()
    if agent is None:
        return _plain(connection)
    try:
        status = agent.status()
    except Unauthorized as error:
        raise Unauthorized(error.message, hint=_again(connection.name)) from error
    cluster = status["cluster"]
    if connection.cluster_id is not None and cluster["id"] != connection.cluster_id:
        raise ConnectionFailed(
            f"{connection.agent_url} belongs to cluster {cluster['name']!r} ({cluster['id']}), "
            f"not to {connection.name!r} ({connection.cluster_id})",
            hint=_again(connection.name),
        )
    if status["phase"] != "ready":
        raise ClusterFailed(
            f"cluster {cluster['name']!r} is {status['phase']}", hint=f"cloudrl status {cluster['name']}"
        )
    return ClusterView(
        name=cluster["name"],
        id=cluster["id"],
        nodes=cluster["nodes"],
        gpus_per_node=cluster["gpus_per_node"],
        device=cluster["device"],
        checkpoint_dir=status["checkpoint_dir"],
        data=status["data"],
        models=status["models"],
        verl_version=status["verl_version"],
        rollouts=tuple(status["rollouts"]),
        provider=cluster["provider"],
        files_dir=status.get("files_dir"),
        secrets_dir=status.get("secrets_dir"),
        ray_version=status["ray"]["version"],
        ray_session=status["ray"].get("session_name"),
    )


def _again(name: str) -> str:
    return f"Open the way to {name} again: cloudrl detach {name}; cloudrl attach {name}"


def _plain(connection: Connection) -> ClusterView:
    """A Ray cluster without agents: what Ray itself knows. Uneven nodes count as the smallest of them."""
    nodes = [node for node in connection.ray().nodes() if node.gpus > 0]
    gpus = min((int(node.gpus) for node in nodes), default=0)
    return ClusterView(name=connection.name, id=None, nodes=len(nodes), gpus_per_node=gpus, device=None)
