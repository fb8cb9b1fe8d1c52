"""Jobs that are left with the cluster's agents: sent there, found again, and waited for."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone

from cloudrl.errors import ConnectionFailed, InputError
from cloudrl.jobs.submission import Submission
from cloudrl.jobs.transfer import deliver, wait_replicated
from cloudrl.jobs.working_dir import PackagePlan, zip_package
from cloudrl.protocol import job_calls
from cloudrl.protocol.backoff import Backoff, retry
from cloudrl.protocol.durable_jobs import DurableJob, newest
from cloudrl.protocol.manifest import Manifest, Part
from cloudrl.protocol.mirror_checks import refusal
from cloudrl.protocol.mirrors import parse_mirror
from cloudrl.protocol.progress import Notice
from cloudrl.protocol.side_by_side import side_by_side
from cloudrl.transport import AgentClient, Connection

_LOST = Backoff(first_s=1.0, longest_s=5.0, give_up_s=60.0)
_STARTS_WITHIN_S = 15.0
_POLL_S = 0.5
_JUDGED_WITHIN_S = 240.0
"""A look at the checkpoints of all nodes may take three minutes of it (`cloudrl.saves.survey`)."""
_PIECE_BYTES = 1 << 20


def send_to_agents(
    connection: Connection,
    submission: Submission,
    on_upload: Callable[[int, int], None],
    on_progress: Callable[[Notice], None],
) -> None:
    """Bring a job and all that it needs to every node, and wait a moment for it to start.

    Args:
        connection: The cluster.
        submission: The job.
        on_upload: Receives bytes that are there, and of how many.
        on_progress: Receives which nodes are waited for, and behind which job this one waits.

    Raises:
        InputError: Its id is taken, or a node cannot take what it needs.
        ConnectionFailed: No answer for a minute; the job may be there.
    """
    agent = connection.agent()
    assert agent is not None  # noqa: S101  `plan_durable`
    if submission.durable is not None and submission.durable.mirror:
        for warning in check_mirror(agent, submission.durable.mirror):
            on_progress(Notice(f"warning: {warning}"))
    deliver(connection, submission, on_upload, lambda sentence: on_progress(Notice(sentence)))
    package = ""
    if submission.package is not None:
        package = send_package(agent, submission.package, on_upload)
        wait_replicated(lambda: agent.files_state(package)[1], "the job's package")
    leave_with_agents(agent, submission, package, on_progress=on_progress)


def leave_with_agents(
    agent: AgentClient,
    submission: Submission,
    package: str,
    *,
    on_progress: Callable[[Notice], object],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Hand a job to the agents, and wait a moment for it to start.

    Args:
        agent: Of rank 0.
        submission: The job, of which everything else is on the nodes.
        package: The address of its package there; "" for none.
        on_progress: Receives the job that it waits for.
        clock: Seconds that never run backwards.
        sleep: Waits that many seconds.

    Raises:
        InputError: Its id is taken, or the agents cannot record it.
        ConnectionFailed: No answer for a minute; the job may be there.
    """
    plan = submission.durable
    assert plan is not None  # noqa: S101  `plan_durable`
    job = DurableJob(
        submission.submission_id, submission.name, "", submission.request(), 0.0, world_size=plan.world_size,
        total_steps=plan.total_steps, saves=plan.saves, chooses_step=plan.chooses_step,
        training_nodes=plan.training_nodes, is_placed=plan.is_placed,
        package=package, keep=plan.keep, keep_every=plan.keep_every, keep_best=plan.keep_best,
        mirror=plan.mirror, mirror_rate=plan.mirror_rate,
    )  # fmt: skip
    taken = retry(lambda: job_calls.submit_job(agent, job), _LOST, clock=clock, sleep=sleep)
    if (taken.keep_every, taken.keep_best) != (job.keep_every, job.keep_best):
        retry(lambda: job_calls.stop_job(agent, job.job_id), _LOST, clock=clock, sleep=sleep)
        raise InputError(
            "the agents of the cluster are of an older release, and would remove steps that --keep-every or "
            "--keep-best keeps; the job is stopped",
            hint="Start the cluster again, or leave out these options",
        )
    ends_at = clock() + _STARTS_WITHIN_S
    while clock() < ends_at:
        jobs = retry(lambda: job_calls.list_jobs(agent), _LOST, clock=clock, sleep=sleep)
        known = next((known for known in jobs if known.job_id == job.job_id), None)
        if known is None or known.attempts or known.outcome is not None:
            return
        before = [other for other in jobs if other.outcome is None and other.number < known.number]
        if before:
            on_progress(Notice(f"{job.job_id} waits for {before[-1].job_id}; it starts by itself"))
            return
        sleep(_POLL_S)
    on_progress(Notice(f"{job.job_id} waits until the cluster is free; it starts by itself"))


def send_package(
    agent: AgentClient,
    package: PackagePlan,
    on_upload: Callable[[int, int], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Bring a package to rank 0, from where the other nodes take it; returns its address.

    A connection that breaks is taken up where it broke.
    """
    content = zip_package(package)
    manifest = Manifest((Part(package.name, len(content), hashlib.sha256(content).hexdigest()),))

    def pieces(here: int) -> Iterator[bytes]:
        for start in range(here, len(content), _PIECE_BYTES):
            yield content[start : start + _PIECE_BYTES]
            on_upload(min(start + _PIECE_BYTES, len(content)), len(content))

    def send() -> None:
        here = agent.announce_files(manifest.address, manifest.to_json()).get(package.name, 0)
        if here < len(content):
            agent.put_file(manifest.address, package.name, pieces(here), offset=here, size_bytes=len(content) - here)

    retry(send, _LOST, sleep=sleep)
    return manifest.address


def find_left(connection: Connection, job_id: str, *, mirror: str = "") -> DurableJob:
    """A job that has ended, or was left with an earlier cluster on these volumes.

    Args:
        connection: The cluster.
        job_id: Of the job, or of an attempt of it.
        mirror: A place that remembers it, with its steps, where the volumes do not; it keeps further copies.

    Raises:
        InputError: No volume of the cluster remembers it, or it has not ended.
        ConnectionFailed: no answer.
    """
    agent = connection.agent()
    if agent is None:
        raise InputError(
            f"{connection.name} has no agents that could remember a job", hint="Another cluster: --cluster NAME"
        )
    here = find_durable(connection, job_id)
    if here is not None and here.outcome is None:
        raise InputError(f"{here.job_id} has not ended: it goes on by itself", hint="See it: cloudrl jobs list")
    recorded = find_recorded(connection, job_id)
    known = [recorded] if recorded is not None else []
    if mirror:
        check_mirror(agent, mirror)
        in_mirror = (replace(record, mirror=mirror) for record in job_calls.jobs_in_mirror(agent, mirror))
        known += [record for record in in_mirror if record.has(job_id)]
    if not known:
        raise InputError(
            f"the volumes of {connection.name} remember no job {job_id!r}",
            hint="In a mirror: --mirror URL\n"
            "Submit it again, and it continues from the newest complete step: --name RUN",
        )
    left = newest(*known)
    return replace(left, mirror=mirror or left.mirror)


def find_recorded(connection: Connection, job_id: str) -> DurableJob | None:
    """The newest record of a job on the volumes of a cluster, also of one that another cluster has left there.

    Args:
        connection: The cluster.
        job_id: Of the job, or of an attempt of it.

    Raises:
        ConnectionFailed: no answer.
    """
    agent = connection.agent()
    if agent is None:
        return None
    ranks = [node.rank for node in agent.status().nodes]
    journals = side_by_side(lambda rank: job_calls.read_journal(agent, rank), ranks)
    known = [job for jobs in journals for job in jobs if job.has(job_id)]
    return newest(*known) if known else None


def leave_again(
    connection: Connection, job: DurableJob, *, now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)
) -> DurableJob:
    """Leave a job with the agents once more.

    It is a job of its own, with another id, and goes on from the newest step of the run that is whole.

    Args:
        connection: The cluster.
        job: See `find_left`.
        now: For its id.

    Raises:
        InputError: The agents refuse it.
        ConnectionFailed: no answer.
    """
    agent = connection.agent()
    assert agent is not None  # noqa: S101  `find_left`
    again = replace(job, job_id=f"{job.run}-{now():%Y%m%d-%H%M%S}", attempts=(), outcome=None, waits_for="")
    return job_calls.submit_job(agent, again)


def check_mirror(agent: AgentClient, mirror: str) -> list[str]:
    """Have every node look at a mirror, rank 0 first; returns what makes it less than it should be.

    Raises:
        InputError: A node cannot use it, or has another folder under that name.
        ConnectionFailed: no answer.
    """
    parse_mirror(mirror)
    token = secrets.token_hex(16)
    first, *others = sorted(node.rank for node in agent.status().nodes)
    try:
        checks = {first: job_calls.check_mirror(agent, first, mirror, token)}
    except InputError as error:
        raise InputError(
            f"--mirror: the agents of the cluster cannot look at it: {error.message}",
            hint="Agents of an older release have no mirrors: start the cluster again",
        ) from error
    if not checks[first].error:
        ask = lambda rank: (rank, job_calls.check_mirror(agent, rank, mirror, token))  # noqa: E731
        checks |= dict(side_by_side(ask, others))
    if (refused := refusal(mirror, checks)) is not None:
        raise refused
    return sorted({check.warning for check in checks.values() if check.warning})


def durable_jobs(connection: Connection) -> tuple[DurableJob, ...]:
    """The jobs that were left with the agents, in the order of their queue; none on a plain Ray cluster.

    Raises:
        ConnectionFailed: no answer.
    """
    agent = connection.agent()
    if agent is None:
        return ()
    try:
        return job_calls.list_jobs(agent)
    except InputError:  # agents of an older release
        return ()


def find_durable(connection: Connection, submission_id: str) -> DurableJob | None:
    """The job that was left with the agents under this id, or with an attempt of this id; None without one.

    Raises:
        ConnectionFailed: no answer.
    """
    return next((job for job in durable_jobs(connection) if job.has(submission_id)), None)


def wait_for_ray(
    connection: Connection, job_id: str, submission_id: str, *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Wait until Ray knows an attempt, which is recorded before it is handed to Ray; or until the attempt has ended.

    Raises:
        ConnectionFailed: no answer for minutes.
    """
    while True:
        try:
            retry(lambda: connection.ray().get_job(submission_id))
        except InputError:
            job = retry(lambda: find_durable(connection, job_id))
            if job is None or job.open_attempt is None or job.submission_id != submission_id:
                return
            sleep(_POLL_S)
        else:
            return


def wait_for_verdict(
    connection: Connection,
    job_id: str,
    number: int,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> DurableJob:
    """The job once the agents have judged the end of its attempt of this number, which takes seconds.

    Args:
        connection: The cluster.
        job_id: The job.
        number: Of the attempt.
        clock: Seconds that never run backwards.
        sleep: Waits that many seconds.

    Raises:
        InputError: The agents do not know the job any more.
        ConnectionFailed: no answer for minutes, or no verdict.
    """
    ends_at = clock() + _JUDGED_WITHIN_S
    while True:
        job = _known_job(connection, job_id)
        if job.outcome is not None or len(job.attempts) > number or job.is_waiting:
            return job
        if clock() > ends_at:
            raise ConnectionFailed(f"the agents do not say what becomes of {job_id}", hint="See: cloudrl jobs list")
        sleep(_POLL_S)


def wait_for_attempt(
    connection: Connection,
    job_id: str,
    number: int,
    *,
    on_wait: Callable[[DurableJob], object],
    sleep: Callable[[float], None] = time.sleep,
) -> DurableJob:
    """Wait until a job has that many attempts, or has ended for good; a cluster that is silent is asked again.

    Args:
        connection: The cluster.
        job_id: The job.
        number: Of attempts.
        on_wait: Called every few seconds with the job as it is.
        sleep: Waits that many seconds.

    Raises:
        InputError: The agents do not know the job any more.
        ConnectionFailed: no answer for minutes.
    """
    while True:
        job = _known_job(connection, job_id)
        if len(job.attempts) >= number or job.outcome is not None:
            return job
        on_wait(job)
        sleep(2.0)


def _known_job(connection: Connection, job_id: str) -> DurableJob:
    job = retry(lambda: find_durable(connection, job_id))
    if job is None:
        raise InputError(f"the agents of {connection.name} do not know {job_id} any more", hint="cloudrl jobs list")
    return job
