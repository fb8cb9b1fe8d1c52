"""The edge of a submission: look at the cluster, pack, upload, send."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cloudrl.connection import RayApi, view
from cloudrl.connection.ray_api import id_taken
from cloudrl.errors import InputError
from cloudrl.jobs.environment import is_remote
from cloudrl.jobs.handle import JobHandle
from cloudrl.jobs.plan import Wishes, plan
from cloudrl.jobs.working_dir import Package, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cloudrl.connection import Connection
    from cloudrl.jobs.submission import Submission
    from cloudrl.spec import Job

_CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True)
class Prepared:
    """A submission with everything that has to be uploaded for it."""

    connection: Connection
    submission: Submission
    package: Package | None = None


def prepare(connection: Connection, job: Job, wishes: Wishes | None = None) -> Prepared:
    """Do all that comes before sending; nothing changes on the cluster.

    Raises:
        InputError: Job, cluster and wishes do not go together, or the working directory is too large.
        ConnectionFailed: Nobody answers.
    """
    wishes = wishes or Wishes()
    cluster = view(connection)
    place = wishes.working_dir or wishes.runtime_env.get("working_dir")
    package = None
    if place is not None and not is_remote(place):
        package = pack(Path(place), wishes.runtime_env.get("excludes") or ())
    return Prepared(connection, plan(job, cluster, wishes, package=package), package)


def send(
    prepared: Prepared, *, on_upload: Callable[[int, int], None] = lambda _done, _total: None
) -> JobHandle:
    """Upload what is missing and submit.

    Args:
        prepared: What `prepare` made.
        on_upload: Called with the bytes that are on their way and how many there are in all.

    Raises:
        InputError: The submission id is taken.
        ConnectionFailed: Nobody answers.
    """
    connection, submission = prepared.connection, prepared.submission
    api = RayApi(connection.ray_url, connection.ray_token)
    _check_free(api, submission.submission_id)
    if prepared.package is not None:
        _upload(api, prepared.package, on_upload)
    api.submit_job(submission.request())
    return JobHandle(
        connection=connection,
        submission_id=submission.submission_id,
        name=submission.name,
        checkpoint_dir=submission.checkpoint_dir,
        total_steps=submission.total_steps,
    )


def submit(connection: Connection, job: Job, wishes: Wishes | None = None) -> JobHandle:
    """Submit a job to a cluster.

    Raises:
        InputError: Job, cluster and wishes do not go together, or the submission id is taken.
        ConnectionFailed: Nobody answers.
    """
    return send(prepare(connection, job, wishes))


def _check_free(api: RayApi, submission_id: str) -> None:
    """Refuse a taken id before anything is uploaded; Ray refuses it again when two come at the same time."""
    try:
        api.get_job(submission_id)
    except InputError:
        return
    raise id_taken(submission_id)


def _upload(api: RayApi, package: Package, on_upload: Callable[[int, int], None]) -> None:
    """Upload a package unless the cluster has it.

    Asking is part of it: Ray drops a package that no job uses, except for ten minutes after somebody asked
    for it (Ray 2.60, job_head.py: get_package). A long upload has used up those minutes, so ask once more.
    """
    if api.package_exists(package.name):
        return
    api.put_package(package.name, _pieces(package.content, on_upload), len(package.content))
    if not api.package_exists(package.name):
        raise InputError(f"{api.ray_url} took package {package.name} and has lost it", hint="Submit again")


def _pieces(content: bytes, on_upload: Callable[[int, int], None]) -> Iterator[bytes]:
    for start in range(0, len(content), _CHUNK_BYTES):
        yield content[start : start + _CHUNK_BYTES]
        on_upload(min(start + _CHUNK_BYTES, len(content)), len(content))
