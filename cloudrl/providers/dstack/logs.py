"""What a run's nodes have written, as the dstack server keeps it, and the reason in it for which the run ended."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING

from cloudrl.providers.dstack.diagnostics import describe_failure

if TYPE_CHECKING:
    from cloudrl.providers.dstack.runs import Node, RunState
    from cloudrl.providers.dstack.server import Server

_DOWN = re.compile(r"^CLOUDRL DOWN: (.+?)\s*$", re.MULTILINE)
_VERDICT = re.compile(r"^CLOUDRL FAILED: (.+?)\s*$", re.MULTILINE)
_FAILED = re.compile(r"^\[[\d:]+ rank \d+\] failed: (.+?)\s*$", re.MULTILINE)
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


def agent_reason(output: str) -> str:
    """Why an agent has ended, as it says itself; "" when it did not."""
    for pattern in (_VERDICT, _FAILED):
        if found := pattern.findall(output):
            return str(found[-1])
    return ""


def exit_reason(server: Server, run: RunState) -> tuple[str, str]:
    """Phase, "failed" or "down", and reason in one line of a run that is over; no reason when it was stopped or done.

    The agent says it in its own output: a permanent failure ends with exit status 0, so that dstack does not try
    for ever, and then only that line tells; so does a cluster that has ended by itself to save money. Otherwise it
    is what dstack says of the node that ended first.
    """
    ended = sorted(run.nodes, key=lambda node: node.latest.finished_at or 0.0)
    outputs = [tail(server, run, node.rank) for node in ended]
    for output in outputs:
        if found := _DOWN.findall(output):
            return "down", str(found[-1])
    reason = _why_failed(run, ended, outputs)
    return "failed" if reason else "down", reason


def _why_failed(run: RunState, ended: list[Node], outputs: list[str]) -> str:
    for pattern in (_VERDICT, _FAILED):
        for output in outputs:
            if found := pattern.findall(output):
                return str(found[-1])
    if run.status != "failed":
        return ""
    for node, output in zip(ended, outputs, strict=True):
        if node.latest.status == "failed":
            said = [line.strip() for line in output.splitlines() if line.strip()]
            last = f"; its last line: {said[-1]}" if said else ""
            return f"rank {node.rank}: {describe_failure(node.latest)}{last}"
    return run.reason or "failed"
