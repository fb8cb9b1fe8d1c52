"""What became of the attempts of a run that dstack has submitted again."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cloudrl.errors import CloudrlError
from cloudrl.protocol.outcome import from_output
from cloudrl.providers.dstack.logs import tail

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloudrl.providers.dstack.runs import Attempt, RunState
    from cloudrl.providers.dstack.server import Server

_READ = 5
"""Of so many attempts, the latest, the output is read for the agents' own words; of older ones dstack's are shown."""
_OF_THE_OTHERS = ("terminated_by_server", "terminated_by_user")
"""dstack's reasons for a node that it has ended since another one did."""


def previous_attempts(server: Server, run: RunState) -> tuple[Mapping[str, Any], ...]:
    """The attempts before the present one, oldest first: {attempt, submitted_at, ended_at, reason, nodes}.

    `attempt` counts from 1, times are seconds since the epoch, `reason` is one line.
    """
    numbers = sorted({each.number for node in run.nodes for each in node.attempts} - {run.attempt})
    return tuple(_described(server, run, number, read=number in numbers[-_READ:]) for number in numbers)


def _described(server: Server, run: RunState, number: int, *, read: bool) -> Mapping[str, Any]:
    ended = [(node.rank, each) for node in run.nodes for each in node.attempts if each.number == number]
    times = [each.finished_at for _, each in ended if each.finished_at is not None]
    return {
        "attempt": number + 1,
        "submitted_at": min(each.submitted_at for _, each in ended),
        "ended_at": max(times, default=None),
        "reason": (_said(server, run, ended) if read else "") or _dstacks_reason(ended),
        "nodes": [
            {
                "rank": rank, "ip": each.hostname, "phase": each.status, "detail": each.reason,
            }
            for rank, each in ended
        ],
    }  # fmt: skip


def _said(server: Server, run: RunState, ended: list[tuple[int, Attempt]]) -> str:
    """The reason in the agents' own words, of the node that ended first if it has said one."""
    for rank, each in sorted(ended, key=lambda node: node[1].finished_at or 0.0):
        with suppress(CloudrlError):  # the log may be gone; the state of the cluster is worth more
            if (outcome := from_output(tail(server, run, rank, attempt=each.number))) is not None:
                return outcome.reason
    return ""


def _dstacks_reason(ended: list[tuple[int, Attempt]]) -> str:
    """That of the node for which the others had to end."""
    said = [node for node in ended if node[1].reason]
    guilty = [node for node in said if node[1].code not in _OF_THE_OTHERS] or said
    if not guilty:
        return "no reason given"
    rank, each = guilty[0]
    place = f" ({each.hostname})" if each.hostname else ""
    return f"rank {rank}{place}: {each.reason}"
