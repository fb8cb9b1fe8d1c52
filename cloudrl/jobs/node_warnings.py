"""What nodes warn of, by their checks and by notices of their cloud, for `up`, `run`, `status` and `watch`. Pure."""

from collections.abc import Iterable, Mapping

from cloudrl.protocol.interruptions import countdown_text
from cloudrl.protocol.progress import Notice
from cloudrl.protocol.ranks import ranks_text
from cloudrl.protocol.report import NodeReport, WarningKind


def node_warnings(nodes: Iterable[NodeReport]) -> Mapping[WarningKind, Notice]:
    """One notice a kind of warning, which names the ranks; equal warnings of several nodes are one sentence."""
    ranks: dict[tuple[WarningKind, str, str], list[int]] = {}
    for node in nodes:
        for warning in node.warnings:
            ranks.setdefault((warning.kind, warning.text, warning.remedy), []).append(node.rank)
    kinds = dict.fromkeys(kind for kind, _, _ in ranks)
    return {
        kind: Notice(
            "; ".join(f"{ranks_text(ranks[each])}: {each[1]}" for each in ranks if each[0] is kind),
            "\n".join(dict.fromkeys(remedy for of, _, remedy in ranks if of is kind and remedy)),
        )
        for kind in kinds
    }


_GOES_ON = (
    "A durable job saves if there is time, and goes on by itself; any other one with: cloudrl submit NAME --name RUN"
)


def interruption_notice(nodes: Iterable[NodeReport], now: float) -> Notice | None:
    """Which machines are about to be taken back; None without a notice.

    Args:
        nodes: of a cluster.
        now: seconds since the epoch.
    """
    texts = [countdown_text(node.rank, node.interruption, now) for node in nodes if node.interruption is not None]
    return Notice("; ".join(texts), _GOES_ON) if texts else None


def interrupted_text(nodes: Iterable[NodeReport]) -> str:
    """The same without the time that is left: `rank 1: spot notice of AWS`."""
    return "; ".join(f"rank {node.rank}: {node.interruption.name}" for node in nodes if node.interruption is not None)
