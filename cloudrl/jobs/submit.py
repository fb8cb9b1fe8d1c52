"""The edge of a submission: look at the cluster and at this machine's files, pack, upload, send.

Files and secrets through the agents are sent once, taken up where it broke off, and on every node before the job is.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from cloudrl.errors import CloudrlError, ConnectionFailed, InputError, Unauthorized
from cloudrl.jobs.conversion import convert_data
from cloudrl.jobs.data_files import read_tables
from cloudrl.jobs.draft import Snapshot
from cloudrl.jobs.git_commit import find_commit
from cloudrl.jobs.handle import JobHandle, job_handle
from cloudrl.jobs.local_files import digests_of, inspect_files
from cloudrl.jobs.memory_runs import keep_run, read_runs
from cloudrl.jobs.model_files import find_model_configs
from cloudrl.jobs.neighbours import ClusterJobs, running_beside
from cloudrl.jobs.pipeline import continues_a_run, plan_job
from cloudrl.jobs.prompt_lengths import find_prompt_lengths
from cloudrl.jobs.reward_check import examine_reward
from cloudrl.jobs.submission import Submission
from cloudrl.jobs.supervised import send_to_agents
from cloudrl.jobs.transfer import deliver
from cloudrl.jobs.working_dir import PackagePlan, zip_package
from cloudrl.options.job import SubmitOptions
from cloudrl.protocol.backoff import Attempts, Backoff
from cloudrl.protocol.progress import Notice, Transfer
from cloudrl.saves.survey import cluster_inventory
from cloudrl.spec import Job
from cloudrl.transport import AgentClient, Connection, RayClient, inspect_cluster
from cloudrl.units import size_text

_CHUNK_BYTES = _MIB = 2**20
_SLOW_TO_READ_BYTES = 256 * _MIB

OnProgress = Callable[[Notice | Transfer | JobHandle], None]
"""Is told sentences, bytes that are on their way, and the job once it is submitted."""
_LOST = Backoff(first_s=1.0, longest_s=5.0, give_up_s=60.0)


def take_snapshot(
    connection: Connection, job: Job, options: SubmitOptions, shell: Mapping[str, str], *, joins_queue: bool = False
) -> Snapshot:
    """Look at the cluster and at this machine; data that verl cannot read is converted, and nothing else changes.

    Args:
        connection: The cluster.
        job: The recipe.
        options: What the user asks for.
        shell: The variables from which secrets that the job needs are taken.
        joins_queue: Whether it may wait with the agents for jobs that run.

    Raises:
        InputError: The working directory is not a folder.
        CheckpointError: A node names a file that is not a path below a folder.
        ConnectionFailed: the cluster does not answer, or another one does.
        ClusterFailed: The cluster has failed, or is not ready yet.
    """
    cluster, here = inspect_cluster(connection), connection.nodes_are_here
    files = convert_data(job, options, inspect_files(job, options), prepared=cluster.data, nodes_are_here=here)
    snapshot = Snapshot(
        cluster, files, shell=shell, nodes_are_here=here,
        commit=find_commit(Path.cwd()), models=find_model_configs(job, options, files), runs=read_runs(),
        prompts=find_prompt_lengths(job, options, files, models=cluster.models if here else {}),
        tables=read_tables(job, options, files, nodes_are_here=here),
        reward=examine_reward(job, options, files, nodes_are_here=here, may_install=not here),
    )  # fmt: skip
    if cluster.has_agents and options.durable is None and not joins_queue:
        with contextlib.suppress(ConnectionFailed):  # `send` meets it again, and says what to do
            snapshot = replace(snapshot, running=running_beside(connection.ray()))
    agent = connection.agent() if continues_a_run(job, options) else None
    if agent is None:
        return snapshot
    nodes = agent.status().nodes
    addresses = {node.rank: node.ip for node in nodes if node.gpus > 0}
    return replace(snapshot, saved=cluster_inventory(nodes, agent.inventory), addresses=addresses)


def prepare(
    job: Job, options: SubmitOptions, snapshot: Snapshot, *, on_progress: OnProgress = lambda _update: None
) -> Submission:
    """Plan a job, and read the files to upload once nothing else prevents it.

    Args:
        job: The recipe.
        options: What the user asks for.
        snapshot: Of the cluster and this machine.
        on_progress: Gets what is uploaded, and which large files are read.

    Raises:
        InputError: As `plan_job`, or a file cannot be read.
        CheckpointError: As `plan_job`.
    """
    folder = snapshot.files.working_dir
    digests: dict[Path, str] = {}
    paths = [(item.text, item.entries) for item in plan_job(job, options, snapshot).uploads]
    if folder is not None:
        paths.append((str(folder.path), folder.entries))
    for text, entries in paths:
        size_bytes = sum(entry.size_bytes for entry in entries)
        if size_bytes > _SLOW_TO_READ_BYTES:
            on_progress(Notice(f"reading {text} ({size_text(size_bytes)}) to see whether the cluster has it"))
        digests |= digests_of(entries)
    files = replace(snapshot.files, digests=digests)
    submission = plan_job(job, options, replace(snapshot, files=files))
    for line in _summary(submission):
        on_progress(Notice(line))
    return submission


def _summary(submission: Submission) -> Iterator[str]:
    """What the user should know, and what is uploaded."""
    yield from submission.remarks.lines
    for item in submission.uploads:
        yield f"{item.text} ({size_text(item.size_bytes)}) -> {item.to}, {item.way}"
    if (package := submission.package) is not None:
        size = f"{package.files} file{'' if package.files == 1 else 's'}, {size_text(package.size_bytes)}"
        excluded = f"; left out: {', '.join(package.excluded)}" if package.excluded else ""
        yield f"working directory: {size}{excluded}"


def send(
    connection: Connection,
    submission: Submission,
    *,
    joins_queue: bool = False,
    on_progress: OnProgress = lambda _update: None,
) -> JobHandle:
    """Upload what is missing and submit, once all of it is on every node.

    Args:
        connection: The cluster.
        submission: What `prepare` made, or one from a journal whose package the cluster still has.
        joins_queue: Whether a durable job may wait with the agents for jobs that are there.
        on_progress: Is told uploads, which nodes are waited for, and the handle.

    Raises:
        InputError: The submission id is taken, another job is in the way, a node has no room, or a secret is absent.
        ConnectionFailed: the cluster does not answer, or another one does; it says if the job may be there.
    """
    if submission.absent:
        raise InputError(f"job {submission.submission_id} needs {submission.absent[0]}, which was not given")
    api = connection.ray()
    _check_cluster(api, connection, submission.ray_session)

    def report_upload(done_bytes: int, total_bytes: int) -> None:
        if total_bytes > _MIB:  # a small one is there before anybody could read of it
            on_progress(Transfer("uploading", done_bytes, total_bytes))

    if submission.durable is not None and not joins_queue:
        on_cluster = ClusterJobs(api)
        on_cluster.ensure_free_for(submission, on_progress=on_progress)
        on_cluster.ensure_first_of(connection)
    send_to = send_to_agents if submission.durable is not None else _send_to_ray
    send_to(connection, submission, report_upload, on_progress)
    if submission.memory is not None:
        keep_run(submission.memory.run_of(submission.submission_id, submission.metadata.get("cloudrl_recipe", "")))
    job = job_handle(connection, submission.submission_id, submission.metadata, submission.notes)
    on_progress(job)
    return job


def _send_to_ray(
    connection: Connection, submission: Submission, on_upload: Callable[[int, int], None], on_progress: OnProgress
) -> None:
    api = connection.ray()
    on_cluster = ClusterJobs(api)
    on_cluster.ensure_free_for(submission, on_progress=on_progress)
    deliver(connection, submission, on_upload, lambda sentence: on_progress(Notice(sentence)))
    if submission.package is not None:
        _upload(connection, submission.package, on_upload)
    submit_once(
        api,
        submission,
        on_break=lambda failure: on_progress(Notice(f"asking again whether the job is there: {failure.message}")),
    )
    on_cluster.withdraw_if_late(submission)


def _check_cluster(api: RayClient, connection: Connection, session: str | None) -> None:
    """Refuse a dashboard that is another cluster's: a Ray without tokens takes anybody's job.

    The agent that `inspect_cluster` has asked belongs to the right cluster, and knows what its own Ray calls itself.
    """
    if session is None:
        return
    again = f"Reconnect: cloudrl detach {connection.name}; cloudrl attach {connection.name}"
    try:
        here = api.version().get("session_name")
    except Unauthorized as error:
        raise Unauthorized(error.message, hint=again) from error
    if here != session:
        raise ConnectionFailed(
            f"{api.ray_url} is the dashboard of another cluster: {connection.name} runs Ray {session}, this is {here}",
            hint=again,
        )


def submit_once(
    api: RayClient,
    submission: Submission,
    *,
    on_break: Callable[[ConnectionFailed], None] = lambda _failure: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Submit a job, and where the answer is lost ask for it and submit it again: Ray takes an id only once.

    Args:
        api: The cluster's.
        submission: The job, whose id is free.
        on_break: Is told why it is asked again, once.
        clock: Seconds that never run backwards.
        sleep: Waits that many seconds.

    Raises:
        InputError: Ray refuses it.
        ConnectionFailed: the cluster has not answered for a minute; the job may be there.
    """
    attempts, was_sent = Attempts(_LOST, clock=clock, sleep=sleep), False
    while True:
        try:
            if not (was_sent and _is_there(api, submission)):
                _submit_or_find(api, submission, was_sent=was_sent)
        except Unauthorized:
            raise
        except ConnectionFailed as failure:
            if attempts.are_exhausted:
                unknown = f"{failure.message}; it is not known whether job {submission.submission_id} is there"
                look = f"cloudrl jobs status {api.job_url(submission.submission_id)}"
                raise ConnectionFailed(unknown, hint=f"Look before you submit it again: {look}") from failure
            if not was_sent:
                on_break(failure)
            was_sent = True
            attempts.pause()
        else:
            return


def _submit_or_find(api: RayClient, submission: Submission, *, was_sent: bool) -> None:
    """Submit it; what was sent before may just have got there, and its id be taken by that."""
    try:
        api.submit_job(submission.request())
    except ConnectionFailed:
        raise
    except CloudrlError:
        if not (was_sent and _is_there(api, submission)):
            raise


def _is_there(api: RayClient, submission: Submission) -> bool:
    """Whether Ray has this very job, and no other one of its id."""
    jobs = (job for job in api.list_jobs() if job.submission_id == submission.submission_id)
    return any(job.entrypoint == submission.request()["entrypoint"] for job in jobs)


def _upload(connection: Connection, package: PackagePlan, on_upload: Callable[[int, int], None]) -> None:
    """Upload a package unless the cluster has it.

    Asking is part of it: Ray drops a package that no job uses, except for ten minutes after somebody asked
    for it (Ray 2.60, job_head.py: get_package). A long upload has used up those minutes, so ask once more.
    """
    api = connection.ray()
    if api.package_exists(package.name):
        return
    content = zip_package(package)
    api.put_package(package.name, _package_pieces(content, connection.agent(), on_upload), len(content))
    if not api.package_exists(package.name):
        raise InputError(f"{api.ray_url} accepted package {package.name} and then lost it", hint="Submit again")


def _package_pieces(
    content: bytes, agent: AgentClient | None, on_upload: Callable[[int, int], None]
) -> Iterator[bytes]:
    """The agent does not see this upload: without a report, a slow one would count as an idle cluster."""
    for start in range(0, len(content), _CHUNK_BYTES):
        yield content[start : start + _CHUNK_BYTES]
        on_upload(min(start + _CHUNK_BYTES, len(content)), len(content))
        if agent is not None:
            with contextlib.suppress(CloudrlError):  # the upload itself says the rest
                agent.note_transfer()
