"""One look at a running cluster."""

from cloudrl.errors import ClusterFailed, ConnectionFailed, Unauthorized
from cloudrl.protocol.phases import Phase
from cloudrl.spec.shape import ClusterShape
from cloudrl.transport.connection import Connection


def inspect_cluster(connection: Connection) -> ClusterShape:
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
    cluster = status.cluster
    if connection.cluster_id is not None and cluster.id != connection.cluster_id:
        raise ConnectionFailed(
            f"{connection.agent_url} belongs to cluster {cluster.name!r} ({cluster.id}), "
            f"not to {connection.name!r} ({connection.cluster_id})",
            hint=_again(connection.name),
        )
    if status.phase is not Phase.READY:
        raise ClusterFailed(f"cluster {cluster.name!r} is {status.phase}", hint=f"cloudrl status {cluster.name}")
    gpus = [node.gpus for node in status.nodes if node.gpus > 0]
    return ClusterShape(
        name=cluster.name,
        id=cluster.id,
        nodes=len(gpus) or cluster.nodes,  # the head of dstack's node groups may have none, and verl uses none of it
        gpus_per_node=min(gpus, default=0),
        device=cluster.device,
        checkpoint_dir=status.checkpoint_dir,
        data=status.data,
        models=status.models,
        verl_version=status.verl_version,
        rollouts=status.rollouts,
        provider=cluster.provider,
        files_dir=status.files_dir,
        secrets_dir=status.secrets_dir,
        ray_version=status.ray.version,
        ray_session=status.ray.session_name,
        nodes_are_here=connection.nodes_are_here,
    )


def _again(name: str) -> str:
    return f"Open the way to {name} again: cloudrl detach {name}; cloudrl attach {name}"


def _plain(connection: Connection) -> ClusterShape:
    """A Ray cluster without agents: what Ray itself knows. Uneven nodes count as the smallest of them."""
    nodes = [node for node in connection.ray().nodes() if node.gpus > 0]
    gpus = min((int(node.gpus) for node in nodes), default=0)
    return ClusterShape(name=connection.name, id=None, nodes=len(nodes), gpus_per_node=gpus, device=None)
