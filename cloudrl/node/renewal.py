"""When a cluster ends itself to be started again, before the provider would end it for good. Pure.

dstack ends a task at its `max_duration` and never retries that (dstack 0.22, core/models/runs.py: to_retry_event). An
agent that exits with 1 before it is an error, which is retried where the task has `retry`.
"""

from __future__ import annotations

from typing import Optional

from cloudrl.protocol.options import BudgetLimits

_MARGIN_S, _MARGIN_SHARE = 120.0, 0.1
"""The provider counts from before the agent started, and the nodes have to agree on the end."""
_SAVE_SHARE = 0.5
"""Of that margin, for a save that is being written."""


def runs_for_s(limits: BudgetLimits) -> Optional[float]:
    """For how long after its start an agent may run, until the cluster ends one way or the other; None without an end.

    Args:
        limits: of the cluster.
    """
    if limits.max_duration_s is None:
        return None
    return limits.max_duration_s - min(_MARGIN_S, _MARGIN_SHARE * limits.max_duration_s)


def is_due(limits: BudgetLimits, running_s: float, *, has_work: bool, is_saving: bool) -> bool:
    """Whether the cluster is to end now, to be started again.

    Args:
        limits: of the cluster.
        running_s: since the agent of rank 0 started.
        has_work: whether a durable job has not ended; without one the provider ends the cluster.
        is_saving: whether a checkpoint is being written.
    """
    end_s = runs_for_s(limits)
    if end_s is None or limits.max_duration_s is None or not (limits.is_started_again and has_work):
        return False
    spared_s = _SAVE_SHARE * (limits.max_duration_s - end_s) if is_saving else 0.0
    return running_s >= end_s + spared_s
