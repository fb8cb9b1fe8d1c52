"""The edge of a submission: look at the cluster and at this machine's files, pack, upload, send."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cloudrl.errors import CloudrlError, ConnectionFailed, InputError, Unauthorized
from cloudrl.jobs.aliases import expand_aliases
from cloudrl.jobs.environment import is_remote
from cloudrl.jobs.handle import JobHandle
from cloudrl.jobs.options import SubmitOptions
from cloudrl.jobs.plan import plan
from cloudrl.jobs.transfer import send_files, wait_replicated
from cloudrl.jobs.uploads import plan_uploads
from cloudrl.jobs.working_dir import DirectoryListing, Package, build_package, scan
from cloudrl.transport import inspect_cluster
from cloudrl.transport.ray_client import PACKAGE_LIMIT_BYTES, id_taken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from cloudrl.jobs.submission import Submission
    from cloudrl.spec import Job
    from cloudrl.spec.shape import ClusterShape
    from cloudrl.transport import Connection, RayClient
    from cloudrl.transport.agent_client import AgentClient

_CHUNK_BYTES = 256 * 1024
_NOTE_EVERY_S = 5.0


@dataclass(frozen=True)
class PreparedSubmission:
    """A submission with everything that has to be uploaded for it."""

    connection: Connection
    submission: Submission
    package: Package | None = None
    ray_session: str | None = None
    """Ray's own name for the cluster that this was made for."""


def prepare(
    connection: Connection,
    job: Job,
    options: SubmitOptions | None = None,
    *,
    here: Path | None = None,
    shell: Mapping[str, str] = os.environ,
    on_read: Callable[[str, int], None] = lambda _text, _size: None,
) -> PreparedSubmission:
    """Do all that comes before sending; nothing changes on the cluster.

    Args:
        connection: The cluster.
        job: The recipe.
        options: What the user asks for.
        here: What relative paths start from; None is the current directory.
        shell: The variables from which secrets that the job needs are taken.
        on_read: Called with each path of this machine, and its size, before it is read.

    Raises:
        InputError: Job, cluster and options do not go together, or what the job brings along is too large.
        ConnectionFailed: Nobody answers.
    """
    cluster = inspect_cluster(connection)
    submission, package = build_submission(cluster, job, options, here=here, shell=shell, on_read=on_read)
    return PreparedSubmission(connection, submission, package, cluster.ray_session)


def build_submission(
    cluster: ClusterShape,
    job: Job,
    options: SubmitOptions | None = None,
    *,
    here: Path | None = None,
    shell: Mapping[str, str] = os.environ,
    on_read: Callable[[str, int], None] = lambda _text, _size: None,
) -> tuple[Submission, Package | None]:
    """What `prepare` does, for a cluster that was looked at, or that is only expected; asks nobody.

    Raises:
        InputError: Job, cluster and options do not go together, or what the job brings along is too large.
    """
    options, here = options or SubmitOptions(), here or Path.cwd()
    folder = scan_working_dir(options)
    cluster, fork = detect_verl_fork(cluster, folder)
    job, options, said = expand_aliases(job, options, cluster, here=here, working_dir=folder)
    uploads = plan_uploads(
        job.with_overrides(options.overrides), cluster, here=here, working_dir=folder,
        remote_working_dir=is_remote(options.working_dir_source or ""),
        limit_bytes=PACKAGE_LIMIT_BYTES, on_read=on_read,
    )  # fmt: skip
    added = uploads.packed
    package = build_package(folder, added) if folder is not None or added else None
    options = replace(options, overrides={**options.overrides, **dict(uploads.overrides)})
    submission = plan(job, cluster, options, package=package, files=uploads.items, shell=shell)
    notes = (*submission.notes, *fork, *said, *uploads.notes)
    return replace(submission, notes=notes), package


def send(
    prepared: PreparedSubmission,
    *,
    on_upload: Callable[[int, int], None] = lambda _done, _total: None,
    on_wait: Callable[[str], None] = lambda _sentence: None,
) -> JobHandle:
    """Upload what is missing and submit, once all of it is on every node.

    Args:
        prepared: What `prepare` made.
        on_upload: Called with the bytes of a file, folder or package that are on their way, and its size.
        on_wait: Called with a sentence when nodes are waited for.

    Raises:
        InputError: The submission id is taken, or a node has no room.
        ConnectionFailed: Nobody answers, or another cluster does.
    """
    connection, submission = prepared.connection, prepared.submission
    api = connection.ray()
    _check_cluster(api, connection, prepared.ray_session)
    _check_free(api, submission)
    _deliver(connection, submission, on_upload, on_wait)
    if prepared.package is not None:
        _upload(api, prepared.package, _with_activity_ping(connection.agent(), on_upload))
    api.submit_job(submission.request())
    return JobHandle(
        connection=connection,
        submission_id=submission.submission_id,
        name=submission.name,
        checkpoint_dir=submission.checkpoint_dir,
        total_steps=submission.total_steps,
    )


def submit(connection: Connection, job: Job, options: SubmitOptions | None = None) -> JobHandle:
    """Submit a job to a cluster.

    Raises:
        InputError: Job, cluster and options do not go together, or the submission id is taken.
        ConnectionFailed: Nobody answers.
    """
    return send(prepare(connection, job, options))


def scan_working_dir(options: SubmitOptions) -> DirectoryListing | None:
    """The working directory of this machine, looked at."""
    if options.working_dir_source is None or is_remote(options.working_dir_source):
        return None
    return scan(Path(options.working_dir_source), options.runtime_env.get("excludes") or ())


def detect_verl_fork(
    cluster: ClusterShape, folder: DirectoryListing | None
) -> tuple[ClusterShape, tuple[str, ...]]:
    """The cluster with the verl that the job is going to import.

    The working directory stands before the image's packages on `sys.path`, for the entry point (`python3 -m`) and
    for every actor on every node (seen with Ray 2.60), so a verl in it takes the place of the image's.
    """
    names = {entry.name for entry in folder.entries} if folder is not None else set()
    if folder is None or "verl/__init__.py" not in names:
        return cluster, ()
    said = folder.folder / "verl" / "version" / "version"  # where verl's own __init__ reads it
    version = said.read_text(encoding="utf-8").strip() if said.is_file() else None
    note = f"the job runs the verl in {folder.folder} ({version or 'of unknown version'}), not the one of the nodes"
    return replace(cluster, verl_version=version), (note,)


def _deliver(
    connection: Connection,
    submission: Submission,
    on_upload: Callable[[int, int], None],
    on_wait: Callable[[str], None],
) -> None:
    """Bring to every node what goes through the agents."""
    items = [item for item in submission.files if item.by == "agents"]
    agent = connection.agent()
    if agent is None or not (items or submission.secrets):
        return
    for item in items:
        send_files(agent, item, on_upload=on_upload)
    if submission.secrets:
        agent.put_secrets(submission.submission_id, submission.secrets)
    for item in items:
        address = item.manifest.address
        wait_replicated(lambda address=address: agent.files_state(address), item.text, on_wait=on_wait)  # type: ignore[misc]
    if submission.secrets:
        wait_replicated(lambda: agent.secrets_state(submission.submission_id), "secrets")


def _check_cluster(api: RayClient, connection: Connection, session: str | None) -> None:
    """Refuse a dashboard that is another cluster's: a Ray without tokens takes anybody's job.

    The agent that `view` has asked belongs to the right cluster, and knows what its own Ray calls itself.
    """
    if session is None:
        return
    again = f"Open the way again: cloudrl detach {connection.name}; cloudrl attach {connection.name}"
    try:
        here = api.version().get("session_name")
    except Unauthorized as error:
        raise Unauthorized(error.message, hint=again) from error
    if here != session:
        raise ConnectionFailed(
            f"{api.ray_url} is the dashboard of another cluster: {connection.name} runs Ray {session}, this is {here}",
            hint=again,
        )


def _check_free(api: RayClient, submission: Submission) -> None:
    """Refuse a taken id before anything is uploaded, and a run that goes on: two jobs would save into one folder.

    Ray refuses a taken id again when two come at the same time.
    """
    for job in api.list_jobs():
        if job.submission_id == submission.submission_id:
            raise id_taken(submission.submission_id)
        if job.metadata.get("job_name") == submission.name and not job.status.is_terminal:
            raise InputError(
                f"run {submission.name!r} goes on as job {job.submission_id}, and saves into the same folder",
                hint=f"Follow it: cloudrl jobs logs -f {job.submission_id}\n"
                f"Stop it:   cloudrl jobs stop {job.submission_id}\nAnother run: another --name",
            )


def _upload(api: RayClient, package: Package, on_upload: Callable[[int, int], None]) -> None:
    """Upload a package unless the cluster has it.

    Asking is part of it: Ray drops a package that no job uses, except for ten minutes after somebody asked
    for it (Ray 2.60, job_head.py: get_package). A long upload has used up those minutes, so ask once more.
    """
    if api.package_exists(package.name):
        return
    api.put_package(package.name, _pieces(package.content, on_upload), len(package.content))
    if not api.package_exists(package.name):
        raise InputError(f"{api.ray_url} took package {package.name} and has lost it", hint="Submit again")


def _with_activity_ping(
    agent: AgentClient | None, on_upload: Callable[[int, int], None]
) -> Callable[[int, int], None]:
    """Let the agent know of an upload that it does not see, or a slow one would count as an idle cluster."""
    if agent is None:
        return on_upload
    next_at = time.monotonic()

    def note(done: int, total: int) -> None:
        nonlocal next_at
        on_upload(done, total)
        if time.monotonic() >= next_at:
            next_at = time.monotonic() + _NOTE_EVERY_S
            with contextlib.suppress(
                CloudrlError
            ):  # an agent of an older release; the upload itself says the rest
                agent.note_transfer()

    return note


def _pieces(content: bytes, on_upload: Callable[[int, int], None]) -> Iterator[bytes]:
    for start in range(0, len(content), _CHUNK_BYTES):
        yield content[start : start + _CHUNK_BYTES]
        on_upload(min(start + _CHUNK_BYTES, len(content)), len(content))
