"""Which ranks are lost, by their heartbeats and by whether anybody still listens at their addresses."""

import time
from typing import Callable, List, Optional, Sequence, Tuple

from cloudrl.protocol.failures import Failure, FailureKind
from cloudrl.protocol.interruptions import loss_text
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.ranks import ranks_text
from cloudrl.protocol.report import NodeReport
from cloudrl.protocol.side_by_side import side_by_side

BEAT_IS_LATE_S = 2.5
_BEAT_IS_MISSED_S = 1.3
"""Longer than the time between two heartbeats."""
_NEARLY = 0.8
"""Ranks that were lost together were heard of last within a few seconds."""


def find_loss(
    reports: Sequence[NodeReport],
    age_s: Callable[[int], float],
    probe: Callable[[NodeReport], str],
    *,
    lost_after_s: float,
) -> Optional[Failure]:
    """The loss of a rank that is silent for too long, or for a moment while no process listens at its address any more.

    What takes away one node may take more: a switch, a rack, a command. So then all are probed, and counted.

    Args:
        reports: of all ranks, this one's as rank 0.
        age_s: seconds since the last heartbeat of a rank.
        probe: what listens at the address of a node's agent, see `cloudrl.node.ray.probe`.
        lost_after_s: how long a rank may be silent.
    """
    late = [report for report in reports if age_s(report.rank) >= BEAT_IS_LATE_S]
    gone = {report.rank for report, answer in _probed(late, probe) if answer == "refused"}
    lost = [node for node in late if node.rank in gone or age_s(node.rank) > lost_after_s]
    if not lost:
        return None
    first = lost[0]
    others = _also_lost(reports, first, age_s, probe, _NEARLY * lost_after_s)
    more = ""
    if others:
        were = "was" if len(others) == 1 else "were"
        more = f"; so {were} {ranks_text(others)}: {len(others) + 1} of {len(reports)} nodes"
    reason = (
        f"rank {first.rank} ({first.hostname}, {first.ip}) {_how(first)}: no heartbeat for {age_s(first.rank):.0f} s"
    )
    agent = ", and its agent is gone" if first.rank in gone else ""
    return Failure(FailureKind.LOST, first.rank, f"{reason}{agent}{more}")


def _also_lost(
    reports: Sequence[NodeReport],
    first: NodeReport,
    age_s: Callable[[int], float],
    probe: Callable[[NodeReport], str],
    silent_s: float,
) -> List[int]:
    """Ranks whose agents are gone as well, or that have missed a heartbeat and do not answer; ended alike."""

    def is_lost(report: NodeReport, answer: str) -> bool:
        age = age_s(report.rank)
        return answer == "refused" or age > silent_s or (age >= _BEAT_IS_MISSED_S and answer != "open")

    others = [
        report for report in reports if report.rank not in (0, first.rank) and _is_ended(report) == _is_ended(first)
    ]
    return [report.rank for report, answer in _probed(others, probe) if is_lost(report, answer)]


def _is_ended(report: NodeReport) -> bool:
    return report.phase is Phase.ENDED


def _probed(reports: Sequence[NodeReport], probe: Callable[[NodeReport], str]) -> List[Tuple[NodeReport, str]]:
    return side_by_side(lambda report: (report, probe(report)), reports)


def _how(report: NodeReport) -> str:
    if _is_ended(report):
        return "was ended there"
    if report.interruption is not None:
        return loss_text(report.interruption, time.time())
    return f"was lost in phase {report.phase}"
