"""Whether to start a job on nodes whose fast network NCCL is not going to use, with what that costs. Pure."""

from cloudrl.errors import CheckpointError
from cloudrl.jobs import Submission
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.sdk.callbacks import Question
from cloudrl.units import duration_text, size_text
from cloudrl.verl.memory.traffic import step_traffic_bytes

_TCP_GB_PER_S = 5.0
"""Where it was not measured: of a card with 100 Gbit/s, as much as NCCL gets over TCP."""


def network_question(cluster: ClusterFacts, submission: Submission) -> Question | None:
    """What to ask before such a job is sent; None where NCCL uses the fastest network that it can.

    The answer without a terminal is yes: the job is slow, not wrong, and `up` has said so.
    """
    if not cluster.unused_network or cluster.gpu_nodes < 2:
        return None
    cost = _cost(cluster, submission)
    return Question(f"{cluster.unused_network}{cost}. Start {submission.submission_id} all the same?")


def _cost(cluster: ClusterFacts, submission: Submission) -> str:
    if submission.memory is None:
        return ""
    try:
        size = step_traffic_bytes(submission.memory.estimate)
    except CheckpointError:  # config.json does not tell the sizes
        return ""
    if size is None:
        return ""
    bytes_per_s = 1e9 * (cluster.link_gb_per_s or _TCP_GB_PER_S)
    rate = f"{size_text(round(bytes_per_s))}/s, {'as measured' if cluster.link_gb_per_s else 'as is usual for TCP'}"
    time = duration_text(size / bytes_per_s)
    return f": about {time} a step for {size_text(round(size))} between nodes at {rate}"
