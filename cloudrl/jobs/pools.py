"""Which nodes of a job train and which only generate."""

from collections import Counter
from collections.abc import Mapping, Sequence

from cloudrl.protocol.report import NodeReport
from cloudrl.transport import Connection
from cloudrl.transport.ray_job import RayJob
from cloudrl.verl.async_modes import SEPARATE
from cloudrl.verl.balance import pools_of
from cloudrl.verl.command import overrides_of
from cloudrl.verl.keys import TRAINER_MODE


def mode_of_job(job: RayJob) -> str:
    """The trainer's mode as the job's command sets it; "" where it does not."""
    return overrides_of(job.entrypoint).get(TRAINER_MODE, "")


def node_pools(connection: Connection, job: RayJob, nodes: Sequence[NodeReport]) -> Mapping[int, str]:
    """Rank -> pool, of a job whose rollout has nodes of its own; empty for any other, and before its workers start.

    Nodes that share an address, as on one machine, cannot be told apart and are left out.

    Raises:
        ConnectionFailed: no answer.
    """
    if job.job_id is None or mode_of_job(job) != SEPARATE:
        return {}
    ray = connection.ray()
    pools = pools_of(ray.state("actors", job.job_id))
    if not pools:
        return {}
    known, counts = ray.nodes(), Counter(node.ip for node in nodes)
    by_address = {node.ip: pools[node.node_id] for node in known if node.node_id in pools}
    return {node.rank: by_address[node.ip] for node in nodes if node.ip in by_address and counts[node.ip] == 1}
