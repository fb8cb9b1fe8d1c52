"""The facts of a cluster, as one of its nodes knows them."""

from typing import Dict, List, Mapping, Optional, Sequence

from cloudrl.node.fetch import split_paths
from cloudrl.node.identity import Identity
from cloudrl.node.node_state import NodeState
from cloudrl.node.replication import ReplicationHub
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.options import AgentOptions
from cloudrl.protocol.report import GpuUsage, NodeReport, NodeWarning, WarningKind

_UNUSED = WarningKind.NETWORK


def cluster_facts(
    options: AgentOptions,
    identity: Identity,
    state: NodeState,
    hub: ReplicationHub,
    *,
    env: Mapping[str, str],
    ray_session: Optional[str],
) -> ClusterFacts:
    """What this node knows of its cluster: a worker of itself only, rank 0 of all ranks that it has heard of."""
    own, reports, data = state.own, state.reports(), state.published.data or {}
    with_gpus = [report for report in reports if report.gpus > 0]
    debuggers = {report.rank: report.debuggers for report in reports}
    return ClusterFacts(
        name=identity.name,
        id=identity.run_id,
        provider=identity.provider,
        nodes=identity.nodes,
        gpu_nodes=identity.nodes - len(reports) + (len(with_gpus) or len(reports)),
        gpus_per_node=min((node.gpus for node in with_gpus), default=0),
        cpus_per_node=min((node.cpus for node in with_gpus if node.cpus > 0), default=0),
        gpu=next((gpu.name for gpu in _gpus(with_gpus) if gpu.name), ""),
        gpu_memory_mib=min((gpu.memory_total_mib for gpu in _gpus(with_gpus) if gpu.memory_total_mib), default=0),
        memory_bytes=min(filter(None, map(_memory_bytes, with_gpus)), default=0),
        disk_bytes=min(filter(None, map(_free_bytes, with_gpus)), default=0),
        shared_checkpoints=state.published.shared_checkpoints,
        is_one_machine=options.is_one_machine,
        disks_stay=options.disks_stay,
        max_duration_s=options.limits.max_duration_s,
        is_started_again=options.limits.is_started_again,
        unused_network=next((warning.text for warning in _warnings(reports) if warning.kind is _UNUSED), ""),
        link_gb_per_s=min(filter(None, map(_received_gb_per_s, reports)), default=0.0),
        device=options.device,
        ray_version=own.ray_version,
        ray_session=ray_session,
        verl_version=own.verl_version,
        rollouts=own.rollouts,
        rollout_versions=own.rollout_versions,
        debuggers=tuple(debuggers.get(rank, ()) for rank in range(identity.nodes)),
        places_controllers=any(report.places_controllers for report in reports if report.rank == 0),
        asks_trainers=len(reports) == identity.nodes and all(report.asks_trainers for report in reports),
        places_training=any(report.places_training for report in reports if report.rank == 0),
        divides_nodes=True,
        checkpoint_dir=str(options.checkpoints),
        files_dir=str(hub.files.root),
        secrets_dir=str(hub.secrets.folder) if hub.secrets.possible else None,
        data={name: split_paths(options.data_dir, name, files) for name, files in data.items()},
        models=_common_models(own.models, reports),
        services=tuple(service.label for service in options.services),
        variables=tuple(sorted(name for name, value in env.items() if value)),
    )


def _gpus(nodes: Sequence[NodeReport]) -> List[GpuUsage]:
    """Those that the nodes have looked at."""
    return [gpu for node in nodes if node.usage is not None for gpu in node.usage.gpus]


def _warnings(nodes: Sequence[NodeReport]) -> List[NodeWarning]:
    return [warning for node in nodes for warning in node.warnings]


def _received_gb_per_s(node: NodeReport) -> float:
    return (node.check.received_gb_per_s or 0.0) if node.check is not None else 0.0


def _memory_bytes(node: NodeReport) -> int:
    return (node.usage.memory_total_bytes or 0) if node.usage is not None else 0


def _free_bytes(node: NodeReport) -> int:
    return node.usage.free_bytes if node.usage is not None else 0


def _common_models(own: Mapping[str, str], reports: Sequence[NodeReport]) -> Dict[str, str]:
    """Models with their folder where it is the same on every node; otherwise the name, found in the cache."""
    return {
        model: path if all(report.models.get(model) == path for report in reports) else model
        for model, path in own.items()
    }
