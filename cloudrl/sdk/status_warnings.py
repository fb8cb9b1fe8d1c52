"""What `cloudrl status` says below its table: what goes wrong with a cluster, and how fast its nodes exchange."""

import time
from collections.abc import Sequence

from cloudrl.jobs.node_warnings import interruption_notice, node_warnings
from cloudrl.protocol.progress import Notice
from cloudrl.protocol.report import NodeReport
from cloudrl.providers.model import Status
from cloudrl.sdk.debugging import waiting
from cloudrl.sdk.failures import hang_of
from cloudrl.sdk.idle_gpus import idle_gpus
from cloudrl.sdk.run_warnings import machine_warnings
from cloudrl.sdk.save_room import save_room
from cloudrl.units import size_text


def status_warnings(cluster: Status) -> list[Notice]:
    """What goes wrong with a cluster, its job and its nodes, each with what to do."""
    taken_back = interruption_notice(cluster.nodes, time.time())
    own = (taken_back, hang_of(cluster), waiting(cluster), idle_gpus(cluster), save_room(cluster.facts))
    machines = (*machine_warnings(cluster), *node_warnings(cluster.nodes).values())
    return [*cluster.warnings, *filter(None, own), *machines]


def links_text(nodes: Sequence[NodeReport]) -> str:
    """`between nodes up to 41.2 GB/s, the slowest from rank 3 to rank 4 38.0 GB/s`; "" where it was not measured."""
    rates = ((node.rank, node.check.received_gb_per_s) for node in nodes if node.check is not None)
    measured = [(rank, rate) for rank, rate in rates if rate]
    if not measured:
        return ""
    ranks = [rank for rank, _ in measured]
    slowest, rate = min(measured, key=lambda each: each[1])
    before = ranks[ranks.index(slowest) - 1]
    best = max(rate for _, rate in measured)
    return (
        f"between nodes up to {_rate_text(best)}, the slowest from rank {before} to rank {slowest} {_rate_text(rate)}"
    )


def _rate_text(gb_per_s: float) -> str:
    return f"{size_text(round(gb_per_s * 1e9))}/s"
