"""The stacks of all ranks of a job that runs, taken now."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from cloudrl.errors import CloudrlError, InputError
from cloudrl.jobs.stack_view import stack_lines
from cloudrl.protocol.job_phases import Blame
from cloudrl.protocol.job_work import LookedAt
from cloudrl.protocol.report import NodeReport
from cloudrl.protocol.side_by_side import side_by_side
from cloudrl.sdk.find import find_job


@dataclass(frozen=True)
class NodeStacks:
    """The processes of jobs on one node.

    Attributes:
        rank, ip: of the node.
        processes: with their stacks; empty where the node did not answer.
    """

    rank: int
    ip: str
    processes: Sequence[LookedAt]


@dataclass(frozen=True)
class JobStacks:
    """The processes of a job.

    Attributes:
        nodes: of the cluster, in the order of their ranks.
        blame: who holds up the others, if the job hangs and two looks have found that.
    """

    nodes: Sequence[NodeStacks]
    blame: Sequence[Blame] = ()

    def lines(self) -> list[str]:
        """What a person reads: who holds up the job first, equal stacks once, idle threads counted."""
        return stack_lines([(node.rank, node.ip, node.processes) for node in self.nodes], self.blame)


def stacks(job_id: str | None = None, name: str | None = None, address: str | None = None) -> JobStacks:
    """Look at the processes of a job on all nodes; the job goes on meanwhile.

    Args:
        job_id: its submission id or `ray://` URL; None for the newest one.
        name: its cluster's.
        address: of any Ray's dashboard.

    Raises:
        InputError: there is no such job, it has ended, or its cluster runs no agents.
        ConnectionFailed: no answer.
    """
    job = find_job(job_id, name, address)
    if job.done():
        raise InputError(f"job {job.submission_id} has ended: no process is left to look at", hint="cloudrl why")
    agent = job.connection.agent()
    if agent is None:
        raise InputError("a plain Ray cluster: no agent looks at its processes", hint="On each node: ray stack")

    def look(node: NodeReport) -> NodeStacks:
        with suppress(CloudrlError):
            return NodeStacks(node.rank, node.ip, agent.look(node.rank))
        return NodeStacks(node.rank, node.ip, ())

    status = agent.status()
    is_same = status.job is not None and status.job.submission_id == job.submission_id
    hang = status.job.hang if status.job is not None and is_same else None
    return JobStacks(side_by_side(look, status.nodes), hang.blame if hang is not None else ())
