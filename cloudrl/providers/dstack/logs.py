"""What a run's nodes have written, as the dstack server keeps it, and the reason in it for which the run ended."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from cloudrl.protocol.outcome import from_output
from cloudrl.protocol.phases import Phase
from cloudrl.providers.dstack.diagnostics import describe_failure

if TYPE_CHECKING:
    from cloudrl.providers.dstack.runs import Node, RunState
    from cloudrl.providers.dstack.server import Server

_PAGE = 1000  # the most that the server gives at once (server/schemas/logs.py: PollLogsRequest)


def tail(server: Server, run: RunState, rank: int, lines: int = _PAGE, *, attempt: int | None = None) -> str:
    """The last lines of one node's output, oldest first, in the latest attempt or the one of that number."""
    from dstack._internal.server.schemas.logs import PollLogsRequest

    job = next(each for each in run.answer.jobs if each.job_spec.job_num == rank)
    wanted = [each for each in job.job_submissions if attempt in (None, each.submission_num)]
    request = PollLogsRequest(
        run_name=run.name,
        job_submission_id=wanted[-1].id,
        descending=True,
        limit=min(lines, _PAGE),
    )
    answer = server.call(server.api.logs.poll, server.project, request)
    pieces = [base64.b64decode(event.message) for event in reversed(answer.logs)]
    return b"".join(pieces).decode("utf-8", "replace").replace("\r\n", "\n")


def exit_reason(server: Server, run: RunState) -> tuple[Phase, str]:
    """Phase and reason in one line of a run that is over; no reason when it was stopped or done.

    The agent says it in its output: a final failure ends with exit status 0, so that dstack does not try for ever,
    and then only that tells; so does a cluster that has ended by itself to save money. Otherwise it is what dstack
    says of the node that ended first.
    """
    ended = sorted(run.nodes, key=lambda node: node.latest.finished_at or 0.0)
    outputs = [tail(server, run, node.rank) for node in ended]
    outcomes = [each for each in map(from_output, outputs) if each is not None]
    if outcomes:
        told = min(outcomes, key=lambda each: (each.phase != Phase.DOWN, not each.final))
        return told.phase, told.reason
    reason = _provider_reason(run, ended, outputs) if run.status == "failed" else ""
    return Phase.FAILED if reason else Phase.DOWN, reason


def _provider_reason(run: RunState, ended: list[Node], outputs: list[str]) -> str:
    for node, output in zip(ended, outputs, strict=True):
        if node.latest.status == "failed":
            said = [line.strip() for line in output.splitlines() if line.strip()]
            last = f"; its last line: {said[-1]}" if said else ""
            return f"rank {node.rank}: {describe_failure(node.latest)}{last}"
    return run.reason or "failed"
