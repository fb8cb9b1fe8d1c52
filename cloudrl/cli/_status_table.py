"""The nodes of a cluster as a table."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from cloudrl.protocol.report import NodeReport
    from cloudrl.providers.model import Status

_STYLES = {"ready": "green", "failed": "bold red", "down": "dim", "ended": "dim"}


def node_table(status: Status) -> RenderableType:
    """Rank, address, phase and what it does, for each node that is known."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    title = f"{status.name} on {status.provider}: {status.phase}, {len(status.nodes)} of {status.nodes_wanted} nodes"
    view = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("rank", "address", "phase", "for", ""):
        view.add_column(column, no_wrap=column != "")
    for node in status.nodes:
        phase = node.phase.value
        view.add_row(
            str(node.rank), Text(node.ip), Text(phase, style=_STYLES.get(phase, "yellow")),
            _seconds(node), Text(_detail(node), overflow="ellipsis"),
        )  # fmt: skip
    return Group(Text(title), view)  # a title of the table would be as narrow as the table


def describe_attempt(attempt: Mapping[str, Any]) -> str:
    """When an attempt ran that was started again, and why it ended."""
    began = datetime.fromtimestamp(attempt["submitted_at"]).astimezone()
    ended = attempt["ended_at"]
    until = f" to {datetime.fromtimestamp(ended).astimezone():%H:%M:%S}" if ended is not None else ""
    when = f"{began:%Y-%m-%d %H:%M:%S}{until}"
    return f"attempt {attempt['attempt']} ({when}) ended and was started again: {attempt['reason']}"


def _seconds(node: NodeReport) -> str:
    """How long the steps so far took."""
    return f"{sum(each for key, each in node.seconds.items() if key != 'files'):.1f} s"


def _detail(node: NodeReport) -> str:
    if node.failure:
        return node.failure.reason
    age_s = node.seen_s_ago
    return f"not heard of for {age_s:.0f} s" if age_s > 5 else node.detail
