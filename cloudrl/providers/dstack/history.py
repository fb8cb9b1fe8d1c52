"""What became of the attempts of a run that dstack has submitted again."""

from __future__ import annotations

from dataclasses import dataclass
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
_OF_THE_OTHERS = ("terminated by server", "terminated by user")
"""dstack's reasons for a node that it has ended since another one did."""


@dataclass(frozen=True)
class _Ended:
    rank: int
    attempt: Attempt


def previous_attempts(server: Server, run: RunState) -> tuple[Mapping[str, Any], ...]:
    """The attempts before the present one, oldest first: {attempt, submitted_at, ended_at, reason, nodes}.

    `attempt` counts from 1, times are seconds since the epoch, `reason` is one line.
    """
    numbers = sorted({each.number for node in run.nodes for each in node.attempts} - {run.attempt})
    return tuple(_described(server, run, number, read=number in numbers[-_READ:]) for number in numbers)


def _described(server: Server, run: RunState, number: int, *, read: bool) -> Mapping[str, Any]:
    ended = [_Ended(node.rank, each) for node in run.nodes for each in node.attempts if each.number == number]
    times = [each.attempt.finished_at for each in ended if each.attempt.finished_at is not None]
    return {
        "attempt": number + 1,
        "submitted_at": min(each.attempt.submitted_at for each in ended),
        "ended_at": max(times, default=None),
        "reason": (_said(server, run, ended) if read else "") or _dstacks_reason(ended),
        "nodes": [
            {
                "rank": each.rank, "ip": each.attempt.hostname, "phase": each.attempt.status,
                "detail": each.attempt.reason, "exit_status": each.attempt.exit_status,
            }
            for each in ended
        ],
    }  # fmt: skip


def _said(server: Server, run: RunState, ended: list[_Ended]) -> str:
    """The reason in the agents' own words, of the node that ended first if it has said one."""
    for each in sorted(ended, key=lambda node: node.attempt.finished_at or 0.0):
        try:
            output = tail(server, run, each.rank, attempt=each.attempt.number)
        except CloudrlError:  # the log may be gone; the state of the cluster is worth more
            continue
        if (outcome := from_output(output)) is not None:
            return outcome.reason
    return ""


def _dstacks_reason(ended: list[_Ended]) -> str:
    """That of the node for which the others had to end."""
    guilty = [each for each in ended if each.attempt.reason and each.attempt.reason not in _OF_THE_OTHERS]
    for each in guilty or ended:
        if each.attempt.reason:
            place = f" ({each.attempt.hostname})" if each.attempt.hostname else ""
            return f"rank {each.rank}{place}: {each.attempt.reason}"
    return "no reason given"
