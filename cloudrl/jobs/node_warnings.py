"""What the checks of nodes warn of, for `up`, `run`, `status` and `watch`. Pure."""

from collections.abc import Iterable, Mapping

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
