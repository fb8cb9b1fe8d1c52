"""What `cloudrl status` says of a cluster and its nodes. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from cloudrl.cli import _output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cloudrl.protocol.report import NodeReport
    from cloudrl.providers.model import Status

HEADS = ("rank", "address", "phase", "for", "detail")
"""The columns, on a terminal and in a pipe."""
STYLES = {"ready": "green", "failed": "bold red", "down": "dim", "ended": "dim"}
"""Phase -> style; yellow for the others."""


def cells_of(node: NodeReport) -> list[str]:
    """One row, without colours; `for` is how long the steps so far took."""
    seconds = sum(each for key, each in node.seconds.items() if key != "files")
    services = ", ".join(f"service {name}: {word}" for name, word in node.services.items() if word != "ready")
    detail = f"no heartbeat for {node.seen_s_ago:.0f} s" if node.seen_s_ago > 5 else node.detail or services
    reason = node.failure.reason if node.failure else detail
    return [str(node.rank), node.ip, node.phase.value, f"{seconds:.1f} s", reason]


def headline(status: Status) -> str:
    """Name and phase of a cluster, and while no node is known why."""
    text = f"{status.name} on {status.provider}: {status.phase}"
    return f"{text}; {status.reason}" if status.reason and not status.nodes and not status.is_over else text


def node_table(status: Status) -> RenderableType:
    """Rank, address, phase and what it does, for each node that is known."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    title = f"{headline(status)}, {len(status.nodes)} of {status.nodes_wanted} nodes"
    view = Table(box=None, pad_edge=False, header_style="bold")
    for head in HEADS:
        view.add_column(head, no_wrap=head != "detail")
    for node in status.nodes:
        styles = {"phase": STYLES.get(node.phase.value, "yellow")}
        cells = zip(HEADS, cells_of(node), strict=True)
        view.add_row(
            *(
                Text(_output.visible(cell, keep=""), style=styles.get(head, ""), overflow="ellipsis")
                for head, cell in cells
            )
        )
    return Group(Text(title), view)  # a title of the table would be as narrow as the table


def describe_attempt(attempt: Mapping[str, Any]) -> str:
    """When an attempt ran that was started again, and why it ended."""
    began = datetime.fromtimestamp(attempt["submitted_at"]).astimezone()
    ended = attempt["ended_at"]
    until = f" to {datetime.fromtimestamp(ended).astimezone():%H:%M:%S}" if ended is not None else ""
    when = f"{began:%Y-%m-%d %H:%M:%S}{until}"
    first, last = attempt["attempt"], attempt["last_attempt"]
    if last > first:
        return f"attempts {first} to {last} ({when}) did not start: {attempt['reason']}"
    return f"attempt {first} ({when}) ended and was started again: {attempt['reason']}"
