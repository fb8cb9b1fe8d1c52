"""GPUs that do nothing for minutes though a job runs, or though they are paid for. Pure."""

from cloudrl.protocol.progress import Notice
from cloudrl.protocol.ranks import spans, texts_by_rank
from cloudrl.protocol.report import NodeReport
from cloudrl.providers.model import Status
from cloudrl.units import dollars_text, duration_text

_WARN_S = 300.0


def idle_gpus(status: Status) -> Notice | None:
    """Which they are, since when at least, and what to do; None where all work, or none has to."""
    working_since = status.budget.working_since
    if working_since is None and not status.price_per_hour:
        return None
    idle = {node.rank: gpus for node in status.nodes if (gpus := _idle(node, working_since or 0.0))}
    if not idle:
        return None
    total = sum(len(node.usage.gpus) for node in status.nodes if node.usage is not None)
    count, least_s = sum(map(len, idle.values())), min(min(gpus.values()) for gpus in idle.values())
    where = texts_by_rank((rank, spans(gpus)) for rank, gpus in idle.items())
    price = f", and the cluster costs {dollars_text(status.price_per_hour)}/h" if status.price_per_hour else ""
    text = f"{count} of {total} GPUs have computed nothing for {duration_text(least_s)} or more ({where}){price}"
    if working_since is None:
        return Notice(text, f"End the cluster, or submit a job: cloudrl down {status.ref}")
    return Notice(text, f"See what the job does: cloudrl watch --cluster {status.ref}")


def _idle(node: NodeReport, since: float) -> dict[int, float]:
    """Index -> seconds, counted from `since` at the earliest."""
    if node.usage is None:
        return {}
    now = node.usage.sampled_at
    idle_s = {gpu.index: now - max(gpu.idle_since, since) for gpu in node.usage.gpus if gpu.idle_since is not None}
    return {index: seconds for index, seconds in idle_s.items() if seconds >= _WARN_S}
