"""When a job that runs is asked to save at the end of its step: before the cluster ends. Pure."""

from __future__ import annotations

from typing import Mapping, Optional

from cloudrl.node.renewal import runs_for_s
from cloudrl.protocol.options import BudgetLimits

LEADS_S = (900.0, 300.0)
"""Before the end it is asked once with each of these left. A step that runs is ended first, which may take minutes."""


def find_wish(submission_id: Optional[str], left_s: Optional[float]) -> str:
    """`SUBMISSION_ID NUMBER` for `HeartbeatReply.save_wish`; "" while nothing is wanted.

    Args:
        submission_id: of the attempt that runs; None without one.
        left_s: until the cluster ends; None if nothing is known of an end.
    """
    number = sum(left_s < lead_s for lead_s in LEADS_S) if left_s is not None else 0
    return f"{submission_id} {number}" if submission_id and number else ""


def left_s(
    limits: BudgetLimits, cost: Optional[float], env: Mapping[str, str], now: float, running_s: float = 0.0
) -> Optional[float]:
    """Seconds until the money is spent or the cluster's time is up, whichever comes first; None without an end.

    Args:
        limits: what the user has set.
        cost: US dollars so far; None if the price is unknown.
        env: of the agent, with CLOUDRL_ENDS_AT where whoever started it knows an end: on Slurm before the signal that
            comes before the time limit. Slurm 23.02 and later set SLURM_JOB_END_TIME (sbatch(1)).
        now: seconds since the epoch.
        running_s: since the agent started, from which the provider's `max_duration` counts.
    """
    ends = []
    if (end_s := runs_for_s(limits)) is not None:
        ends.append(end_s - running_s)
    if limits.max_cost is not None and limits.price_per_hour and cost is not None:
        ends.append((limits.max_cost - cost) / limits.price_per_hour * 3600)
    for name in ("CLOUDRL_ENDS_AT", "SLURM_JOB_END_TIME"):
        end_time = env.get(name, "")
        if end_time.isascii() and end_time.isdecimal():
            ends.append(int(end_time) - now)
    return min(ends, default=None)
