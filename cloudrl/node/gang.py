"""Rank 0's side of the check that all nodes compute together: when it starts, which rank is at fault, what is slow.

The agents have met already, so that rank 0 knows each node and a port of it; it hands out the list. Then each rank
tries to reach every other one, and all exchange with torch's own collectives, NCCL or RCCL with GPUs and gloo without.
A rank that does not answer ends the start. Slowness is a warning.
"""

import time
from statistics import median_high
from typing import Callable, Iterator, Optional, Sequence

from cloudrl.node.failure import NodeFailed
from cloudrl.node.node_state import NodeState
from cloudrl.protocol.compute import SWITCH, ComputeStep, Member, NodeCheck, Rendezvous
from cloudrl.protocol.failures import Failure, FailureKind
from cloudrl.protocol.ranks import ranks_text, texts_by_rank
from cloudrl.protocol.report import NodeReport, NodeWarning, WarningKind
from cloudrl.units import size_text

ANSWERS_WITHIN_S = 55.0
"""From the moment when all are ready. More than torch's own limit, so that its errors are there."""
_ALL_HAVE_SAID_S = 7.0
"""From the first error: the others' errors and their silence are known then."""
_SLOW_LINK, _SLOW_GPU = 1 / 3, 0.7
"""Of the fastest link, and of the usual GPU: less is worth a warning. A node that sends slowly also receives slowly, as
its acknowledgements are late, so that of few nodes most may be slow."""
_LEAST_GB_PER_S = 1.0
"""Between nodes with GPUs: a step of a 7B model moves hundreds of gigabytes."""
_REMEDY = "open all TCP ports between the nodes; training takes those that the system hands out"


class Gang:
    """Follows the check, on rank 0.

    Args:
        nodes: of the cluster.
        state: of rank 0, which tells all nodes.
        warn: receives what is slow.
        on_gpus: whether the nodes compute on GPUs.
        clock: seconds that never run backwards.

    Attributes:
        is_over: whether all have computed together, or there are not two that could.
    """

    def __init__(
        self,
        nodes: int,
        state: NodeState,
        warn: Callable[[NodeWarning], object],
        *,
        on_gpus: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes, self._state, self._warn, self._on_gpus, self._clock = nodes, state, warn, on_gpus, clock
        self._began_at: Optional[float] = None
        self._error_at: Optional[float] = None
        self.is_over = False

    def look(self, reports: Sequence[NodeReport]) -> None:
        """One look at all nodes.

        Raises:
            NodeFailed: a rank does not answer, or cannot be reached.
        """
        if self.is_over:
            return
        if self._began_at is None:
            self._start(reports)
            return
        reports = [report for report in reports if report.check is not None and report.check.processes]
        failure = self._failure(reports)
        if failure is not None:
            raise NodeFailed(failure)
        if all(_check(report).step is ComputeStep.DONE for report in reports):
            self.is_over = True
            for warning in slow_parts(reports, on_gpus=self._on_gpus):
                self._warn(warning)

    def _start(self, reports: Sequence[NodeReport]) -> None:
        ready = ComputeStep.READY.number
        # a node that is at the barrier and says nothing of a check has none
        waiting = [each for each in reports if _check(each).step.number < ready and (each.check or not each.fetched)]
        if len(reports) < self._nodes or waiting:
            return
        able = [report for report in reports if _check(report).processes]
        members = [Member(each.rank, each.ip, _check(each).port, _check(each).processes) for each in able]
        self.is_over = len(members) < 2
        self._state.publish(rendezvous=Rendezvous(() if self.is_over else tuple(members)))
        self._began_at = self._clock()

    def _failure(self, reports: Sequence[NodeReport]) -> Optional[Failure]:
        now, began_at = self._clock(), self._began_at or 0.0
        closed = {report.rank: _check(report).unreachable for report in reports if _check(report).unreachable}
        failed = [report for report in reports if _check(report).error or _check(report).lost]
        if not (closed or failed):
            self._error_at = None  # a process was silent for a moment
            return self._late(reports) if now - began_at > ANSWERS_WITHIN_S else None
        self._error_at = now if self._error_at is None else self._error_at
        if now - self._error_at < _ALL_HAVE_SAID_S:
            return None
        if closed:
            told = texts_by_rank((rank, f"cannot reach {ranks_text(others)}") for rank, others in closed.items())
            return _failed(next(iter(closed)), f"{told} -> {_REMEDY}", "unreachable")
        lost = [report for report in reports if _check(report).lost]
        if lost:
            why = texts_by_rank((each.rank, f"no sign of life while in step {_check(each).step}") for each in lost)
            return _failed(lost[0].rank, why, "silent")
        why = texts_by_rank((report.rank, _check(report).error) for report in failed)
        return _failed(failed[0].rank, why, "error")

    def _late(self, reports: Sequence[NodeReport]) -> Optional[Failure]:
        """That ranks are behind the others at the deadline; all of them, where all hang in the same step."""
        slowest = min((_check(report).step for report in reports), key=lambda step: step.number)
        late = [report for report in reports if _check(report).step is slowest]
        if slowest is ComputeStep.DONE:
            return None
        why = texts_by_rank((each.rank, f"not through step {_check(each).step}") for each in late)
        return _failed(late[0].rank, f"{why} after {ANSWERS_WITHIN_S:g} s", "timeout")


def slow_parts(reports: Sequence[NodeReport], *, on_gpus: bool) -> Iterator[NodeWarning]:
    """Links and GPUs that are slower than the others, or than training needs.

    Args:
        reports: of the nodes that have computed together, in the order of their ranks.
        on_gpus: on CPUs, only links count.
    """
    rates = [(report.rank, _check(report).received_gb_per_s or 0.0) for report in reports]
    before = {report.rank: reports[at - 1].rank for at, report in enumerate(reports)}
    fastest = max(rate for _, rate in rates)
    slow = [(rank, rate) for rank, rate in rates if 0 < rate < _SLOW_LINK * fastest]
    if slow:
        links = "; ".join(f"from rank {before[rank]} to rank {rank} {rate_text(rate)}" for rank, rate in slow)
        yield NodeWarning(f"slow links: {links}; the fastest: {rate_text(fastest)}", "", WarningKind.SLOW)
    elif on_gpus and 0 < fastest < _LEAST_GB_PER_S:
        yield NodeWarning(
            f"the nodes exchange {rate_text(fastest)}: training over several nodes will wait for the network",
            "machines with InfiniBand, RoCE or EFA, or one node", WarningKind.SLOW,
        )  # fmt: skip
    speeds = [(report.rank, gpu, tflops) for report in reports for gpu, tflops in enumerate(_check(report).tflops)]
    usual = median_high([tflops for *_, tflops in speeds]) if speeds else 0.0
    slow_gpus = [(rank, gpu, tflops) for rank, gpu, tflops in speeds if tflops < _SLOW_GPU * usual]
    if on_gpus and slow_gpus:
        told = texts_by_rank((rank, f"GPU {gpu} {tflops:.0f} TFLOP/s") for rank, gpu, tflops in slow_gpus)
        yield NodeWarning(
            f"slow GPUs: {told}; usual here: {usual:.0f}",
            "look at their clocks and temperature (nvidia-smi -q -d PERFORMANCE), or replace the node",
            WarningKind.SLOW,
        )


def rate_text(gb_per_s: float) -> str:
    """`12.3 GB/s`, `240 MB/s`."""
    return f"{size_text(round(gb_per_s * 1e9))}/s"


def _check(report: NodeReport) -> NodeCheck:
    return report.check or NodeCheck()


def _failed(rank: int, reason: str, code: str) -> Failure:
    text = f"the nodes do not compute together: {reason}. To start without this check: --env {SWITCH}=off"
    return Failure(FailureKind.JOIN, rank, text, subject="computing together", code=code)
