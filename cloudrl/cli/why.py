"""`cloudrl why`: the first root cause of a job's failure."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import AddressOption, ClusterOption, JsonOption, KeptOption
from cloudrl.cli._terminal import Terminal
from cloudrl.cli.jobs import JobArgument

if TYPE_CHECKING:
    from cloudrl.logs.causes import Cause
    from cloudrl.sdk.failures import Failure


_UNKNOWN = "This is not a known failure; all that is left of it is shown."


def why(
    job_id: JobArgument = None,
    kept: KeptOption = None,
    stacks: Annotated[
        bool,
        typer.Option("--stacks", help="Print what all ranks of a running job do now: stacks of the threads at work."),
    ] = False,
    all_threads: Annotated[
        bool, typer.Option("--all-threads", help="Print the stacks of all threads, also idle ones, in full.")
    ] = False,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    address: AddressOption = None,
) -> None:
    """Show why a job failed or hangs: what went wrong first, on which node, and what to do about it.

    What only follows from it is left out, such as the time-outs of the other ranks.
    """
    if stacks or all_threads:
        _show_stacks(job_id, cluster, address, all_threads=all_threads, as_json=as_json)
        return
    from cloudrl.sdk.failures import why as find_out

    failure = find_out(job_id, cluster, address, kept, on_progress=Terminal())
    if as_json:
        fields = {key: value for key, value in asdict(failure).items() if key != "log_command"}
        _output.as_json(fields)
    else:
        _tell(failure)


def _tell(failure: Failure) -> None:
    if failure.cause is not None:
        _show(failure.cause)
    elif failure.cluster_is_gone and failure.status in ("RUNNING", "PENDING"):
        _output.note(f"{failure.submission_id} was {failure.status} when its logs were last kept; its cluster is gone")
        _output.hint(failure.log_command)
    elif failure.status in ("FAILED", None):
        _output.note(f"nothing says why {failure.submission_id} ended")
        _output.hint(failure.log_command)
    else:
        _output.note(f"{failure.submission_id} has not failed: its status is {failure.status}")
        _tell_state(failure)
    if not failure.is_complete:
        _output.note("\nThe search took too long and stopped before all logs were read: the cause may be another one")
        _output.hint(failure.log_command)


def _tell_state(failure: Failure) -> None:
    """The phase of a job that runs, and what holds it up."""
    from cloudrl.jobs.hangs import hang_notice
    from cloudrl.protocol.job_phases import phase_text

    if failure.job is None:
        return
    notice = hang_notice(failure.job, time.time(), failure.price_per_hour)
    if notice is None:
        _output.note(phase_text(failure.job, time.time()))
    else:
        _output.data(_output.visible(notice.text))
        _output.hint(notice.hint)


def _show_stacks(
    job_id: str | None, cluster: str | None, address: str | None, *, all_threads: bool, as_json: bool
) -> None:
    from cloudrl.sdk.stacks import stacks

    found = stacks(job_id, cluster, address)
    if as_json:
        _output.as_json([asdict(node) for node in found.nodes])
        return
    for node in found.nodes:
        if not node.processes:
            _output.note(f"rank {node.rank} ({node.ip}): no process of a job, or no answer")
        for process in node.processes if all_threads else ():
            source = f"by {process.source}" if process.source else "no stacks: it computes or could not be read"
            head = f"rank {node.rank} ({node.ip}), pid {process.pid}, {process.title} [{process.state}], {source}"
            _output.data(_output.visible(f"{head}\n{process.stacks}"))
    if not all_threads:
        _output.data(_output.visible("\n".join(found.lines())))
        words = [*([job_id] if job_id else []), *(["--cluster", cluster] if cluster else []), "--all-threads"]
        _output.hint(f"All threads in full: {_output.command(['why', *words])}")


def _show(cause: Cause) -> None:
    place = f"on {cause.where}" if cause.where else "on a node that is not known"
    place += f"\nin your file {cause.code}" if cause.code else ""
    place += f": {cause.call}" if cause.call else ""
    meaning = f"\n{cause.meaning} [{cause.signature}]" if cause.signature else f"\n{_UNKNOWN}"
    lines = "\n".join(f"  {line}" for line in cause.lines)
    _output.data(_output.visible(f"{cause.error}\n{_time(cause.at)}{place}{meaning}\n\n{lines}"))
    if cause.elsewhere:
        _output.note("\nIn the same second:")
    for other in cause.elsewhere:
        _output.note(f"  {_time(other.at)}{other}")
    if cause.remedy:
        _output.hint(cause.remedy)


def _time(at: float | None) -> str:
    return f"{datetime.fromtimestamp(at).astimezone():%H:%M:%S} " if at is not None else ""
