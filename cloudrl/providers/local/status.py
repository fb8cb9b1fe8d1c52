"""The status of a cluster of this machine: from its head agent where that answers, else what its agents have left."""

from contextlib import suppress
from dataclasses import replace

from cloudrl.errors import ConnectionFailed
from cloudrl.node.tokens import derive
from cloudrl.protocol import outcome
from cloudrl.protocol.phases import Phase
from cloudrl.providers.local import processes
from cloudrl.providers.local.state import LocalState
from cloudrl.providers.model import CheckpointRetention, Status, agent_fields
from cloudrl.transport import AgentClient, Connection


def read_status(known: LocalState) -> Status:
    """The status now. A cluster that has ended by itself is "failed" with its reason until `down` or the next `up`.

    One that has ended to save money is "down", with its reason.
    """
    coming_or_going = processes.agents(known.id)
    saved, own = known.checkpoints, known.folder
    stay = "checkpoints and logs stay" if own in saved.parents else f"checkpoints stay in {saved}, logs"
    status = Status(
        known.name,
        "local",
        Phase.START if coming_or_going else Phase.DOWN,
        nodes_wanted=known.nodes,
        checkpoint_dir=str(saved),
        retention=CheckpointRetention(destroyed=False, location=f"in {saved}"),
        teardown_summary=f"{stay} in {own}",
        logs_command=str(own),
        state_dir=str(own),
        nodes_are_here=True,
    )
    if coming_or_going:
        with suppress(ConnectionFailed):  # it does not listen yet, or no more: then it has left its reason
            way = connection(known)
            said = AgentClient(str(way.agent_url), str(way.agent_token), timeout_s=5.0).status()
            budget = said.budget
            status = replace(status, price_per_hour=budget.price_per_hour, cost=budget.cost, **agent_fields(said))
            return replace(status, dashboard_url=way.ray_url)
    phase, reason = exit_reason(known)
    return replace(status, phase=phase, reason=reason) if reason else status


def exit_reason(known: LocalState) -> tuple[Phase, str]:
    """How a cluster has ended, and why: as an agent has left it, rank 0's word first; no reason where none has."""
    found = []
    for rank in range(known.nodes):
        with suppress(FileNotFoundError):
            if (left := outcome.from_text((known.node_dir(rank) / outcome.FILE).read_text())) is not None:
                found.append(left)
    for each in found:
        if each.phase is not Phase.ENDED:
            return each.phase, each.reason
    return Phase.FAILED, found[0].reason if found else ""


def connection(known: LocalState) -> Connection:
    """Addresses and tokens of a cluster that runs."""
    tokens = derive(known.key_file.read_bytes())
    return Connection(
        name=known.name,
        ray_url=f"http://127.0.0.1:{known.dashboard_port}",
        ray_token=tokens.ray,
        agent_url=f"http://127.0.0.1:{known.agent_ports[0]}",
        agent_token=tokens.agent,
        cluster_id=known.id,
        nodes_are_here=True,
    )
