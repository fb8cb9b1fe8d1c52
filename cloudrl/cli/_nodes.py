"""What `cloudrl status` says of a cluster and its nodes. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING

from cloudrl.cli import _output
from cloudrl.protocol.ranks import spans

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cloudrl.protocol.report import NodeReport
    from cloudrl.providers.model import Status

_EACH = 16
"""Of so many nodes each has its row."""
_ROWS = 40
_RANKS_WIDTH = 40
_SILENT_S = 5
STYLES = {"ready": "green", "failed": "bold red", "down": "dim", "ended": "dim"}
"""Phase -> style; yellow for the others."""


def rows_of(nodes: Sequence[NodeReport]) -> list[tuple[list[str], str]]:
    """The rows, without colours, each with its phase; of many nodes those in the same state are one row.

    Args:
        nodes: In the order of their ranks.
    """
    if len(nodes) <= _EACH:
        return [(_cells([node]), node.phase.value) for node in nodes]
    groups: dict[tuple[str, str], list[NodeReport]] = {}
    for node in nodes:
        groups.setdefault((node.phase.value, _state(node)), []).append(node)
    shown = [(_cells(group), phase) for (phase, _), group in list(groups.items())[:_ROWS]]
    if rest := [node.rank for group in list(groups.values())[_ROWS:] for node in group]:
        cells = {"rank": spans(rest, _RANKS_WIDTH), "detail": f"{len(rest)} more nodes; all of them: --json"}
        shown.append(([cells.get(head, "") for head in columns()], ""))
    return shown


def _cells(nodes: Sequence[NodeReport]) -> list[str]:
    """A row of nodes that are in the same state."""
    return [cell(nodes) for cell in columns().values()]


def _ranks(nodes: Sequence[NodeReport]) -> str:
    return spans((node.rank for node in nodes), _RANKS_WIDTH)


def _reported(field: str) -> Callable[[Sequence[NodeReport]], str]:
    """What nodes report in a field: the first one's, and how many others there are if they differ."""

    def cell(nodes: Sequence[NodeReport]) -> str:
        values = [str(getattr(node, field)) for node in nodes]
        return values[0] if len(set(values)) == 1 else f"{values[0]} and {len(nodes) - 1} more"

    return cell


def _in_phase(nodes: Sequence[NodeReport]) -> str:
    """How long they are in their phase; of several, the shortest and the longest."""
    from cloudrl.units import duration_text

    seconds = [node.phase_s for node in nodes if node.phase_s is not None]
    if not seconds:
        return ""
    shortest, longest = duration_text(min(seconds)), duration_text(max(seconds))
    return shortest if shortest == longest else f"{shortest} to {longest}"


def _detail(nodes: Sequence[NodeReport]) -> str:
    from cloudrl.sdk.progress_lines import fetching_text
    from cloudrl.units import duration_text

    silent_s = max(node.seen_s_ago for node in nodes)
    if _is_silent(nodes[0]):
        return f"{_state(nodes[0])} for {duration_text(silent_s)}"
    is_fetching = nodes[0].failure is None and not nodes[0].detail
    return fetching_text(nodes) if is_fetching and nodes[0].fetching else _state(nodes[0])


def _state(node: NodeReport) -> str:
    """What a node does, or what is wrong with it."""
    if node.failure:
        return node.failure.reason
    services = ", ".join(f"service {name}: {word}" for name, word in node.services.items() if word != "ready")
    return "no heartbeat" if _is_silent(node) else node.detail or ", ".join(node.fetching) or services


def _is_silent(node: NodeReport) -> bool:
    return node.failure is None and node.seen_s_ago > _SILENT_S


@cache
def columns() -> dict[str, Callable[[Sequence[NodeReport]], str]]:
    """Head -> what a row of nodes has in that column, on a terminal and in a pipe."""
    from cloudrl.protocol.report import COLUMN, NodeReport

    reported = {
        field.metadata[COLUMN]: _reported(field.name) for field in fields(NodeReport) if COLUMN in field.metadata
    }
    return {"rank": _ranks, **reported, "for": _in_phase, "detail": _detail}


def node_table(status: Status, phase_s: float | None = None) -> RenderableType:
    """Rank, address, phase and what it does, for the nodes that are known.

    Args:
        status: of the cluster.
        phase_s: seconds that it is in its phase, if that is to be shown.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from cloudrl.sdk.progress_lines import headline
    from cloudrl.units import duration_text

    since = "" if phase_s is None else f", for {duration_text(phase_s)}"
    title = f"{headline(status)}{since}, {len(status.nodes)} of {status.facts.nodes} nodes"
    view = Table(box=None, pad_edge=False, header_style="bold")
    for head in columns():
        view.add_column(head, no_wrap=head != "detail")
    for cells, phase in rows_of(status.nodes):
        styles = {"phase": STYLES.get(phase, "yellow")}
        view.add_row(
            *(
                Text(_output.visible(cell, keep=""), style=styles.get(head, ""), overflow="ellipsis")
                for head, cell in zip(columns(), cells, strict=True)
            )
        )
    return Group(Text(title), view)  # a title of the table would be as narrow as the table
