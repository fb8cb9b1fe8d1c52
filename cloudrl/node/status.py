"""The answer of an agent to a client: how its cluster is."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from cloudrl.protocol.failures import Failure, FailureKind
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.report import ClusterInfo, ClusterStatus

if TYPE_CHECKING:
    from cloudrl.node.agent import Agent


def cluster_status(agent: Agent) -> ClusterStatus:
    """A worker knows itself only; rank 0 knows everybody."""
    identity, state, own = agent.identity, agent.state, agent.state.own
    failure, secrets = state.failure, agent.replication.secrets
    nodes = (
        dataclasses.replace(each, seen_s_ago=round(state.heartbeat_age_s(each.rank), 1))
        for each in state.reports()
    )
    value = ClusterStatus(
        cluster=ClusterInfo(
            identity.name, identity.run_id, identity.provider, identity.nodes, agent.gpus, own.cpus,
            agent.options.device,
        ),
        phase=own.phase if failure is None else phase_after(failure),
        detail=own.detail,
        started_at=agent.started_at,
        failure=failure,
        verl_version=own.verl_version,
        rollouts=own.rollouts,
        checkpoint_dir=str(agent.options.checkpoints),
        files_dir=str(agent.replication.files.root),
        secrets_dir=str(secrets.folder) if secrets.possible else None,
        nodes=tuple(nodes),
    )  # fmt: skip
    return dataclasses.replace(value, **agent.more_status())


def phase_after(failure: Failure) -> Phase:
    """The phase in which a failure leaves its cluster."""
    return Phase.ENDED if failure.kind is FailureKind.DOWN else Phase.FAILED
