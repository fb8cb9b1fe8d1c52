"""`cloudrl why`: the first root cause of a job's failure."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

from cloudrl.cli import _output
from cloudrl.cli._options import AddressOption, ClusterOption, JsonOption
from cloudrl.cli.jobs import JobArgument

if TYPE_CHECKING:
    from cloudrl.jobs.causes import Cause


def why(
    job_id: JobArgument = None,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    address: AddressOption = None,
) -> None:
    """Show why a job failed: what went wrong first, on which node, and what to do about it.

    What only follows from it is left out, such as the time-outs of the other ranks.
    """
    from cloudrl.sdk.find import find_job
    from cloudrl.transport.ray_job import JobStatus

    job = find_job(job_id, cluster, address)
    status, cause = job.status().status, job.cause()
    if as_json:
        fields = {"submission_id": job.submission_id, "status": str(status), "cause": asdict(cause) if cause else None}
        _output.as_json(fields)
    elif cause is not None:
        _show(cause)
    elif status is JobStatus.FAILED:
        _output.note(f"{job.submission_id} failed, and neither Ray's state nor its log says why")
        _output.hint(f"cloudrl jobs logs {job.url}")
    else:
        _output.note(f"{job.submission_id} has not failed: {status}")


def _show(cause: Cause) -> None:
    place = f"on {cause.where}" if cause.where else "on a node that is not known"
    known = f"\n{cause.meaning} [{cause.signature}]" if cause.signature else ""
    lines = "\n".join(f"  {line}" for line in cause.lines)
    _output.data(_output.visible(f"{cause.error}\n{_time(cause.at)}{place}{known}\n\n{lines}"))
    if cause.elsewhere:
        _output.note("\nIn the same second:")
    for other in cause.elsewhere:
        where = ", ".join(filter(None, ("" if other.rank is None else f"rank {other.rank}", other.process)))
        _output.note(f"  {_time(other.at)}{where}: {other.error}")
    if cause.remedy:
        _output.hint(cause.remedy)


def _time(at: float | None) -> str:
    return f"{datetime.fromtimestamp(at).astimezone():%H:%M:%S} " if at is not None else ""
