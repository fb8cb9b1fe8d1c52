"""The other jobs of a cluster: which of them a new job would disturb, and how to wait for one."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from cloudrl.errors import CloudrlError, InputError, Interrupted
from cloudrl.jobs.draft import Neighbour
from cloudrl.jobs.handle import JobHandle, find_job, way_back
from cloudrl.jobs.submission import Submission
from cloudrl.jobs.supervised import durable_jobs
from cloudrl.protocol.progress import Notice
from cloudrl.transport import Connection, RayClient
from cloudrl.transport.job_url import JOB_URL
from cloudrl.transport.ray_client import id_taken
from cloudrl.transport.ray_job import RayJob
from cloudrl.verl.transfer_queue import CONTROLLER, uses_transfer_queue

_WHY = (
    "verl's trainer keeps its samples in TransferQueue, of which a cluster has one for all jobs: "
    "the job that ends first closes it, and the other one waits for ever"
)


class ClusterJobs:
    """What runs on a cluster already, before and after a job is submitted to it."""

    def __init__(self, api: RayClient) -> None:
        self._api = api

    def ensure_free_for(self, submission: Submission, *, on_progress: Callable[[Notice], object]) -> None:
        """Refuse a job that has the id or the run of another one, or that would stop another one.

        Args:
            submission: The job.
            on_progress: Is told of a running job that this one might stop, where its command does not tell.

        Raises:
            InputError: The id is taken, or a job runs that saves into the same folder or uses the same TransferQueue.
        """
        jobs = self._api.list_jobs()
        for job in jobs:
            if job.submission_id == submission.submission_id:
                raise id_taken(submission.submission_id, self._api.job_url(submission.submission_id))
        running = [job for job in jobs if not job.status.is_terminal]
        for job in running:
            if job.metadata.get("job_name") == submission.name:
                raise InputError(
                    f"run {submission.name!r} is still running as job {job.submission_id}, "
                    "which saves into the same folder",
                    hint=self._ways_out(job, submission),
                )
        trainers = [job for job in running if _uses_queue(job)]
        if submission.uses_transfer_queue:
            if trainers:
                raise self._in_the_way(trainers[0], submission)
            self._refuse_hidden_queue(jobs, submission)
        elif trainers:
            text = f"job {trainers[0].submission_id} is training; if this one starts verl, it stops that one"
            on_progress(Notice(f"{text}. {_WHY}"))

    def ensure_first_of(self, connection: Connection) -> None:
        """Refuse a job that would wait in the queue of the agents without its user's having asked for that.

        Raises:
            InputError: A job waits there, or is between two attempts.
            ConnectionFailed: no answer.
        """
        waiting = [job for job in durable_jobs(connection) if job.is_waiting]
        if waiting:
            first = waiting[0]
            why = f": {first.waits_for}" if first.waits_for else ""
            raise InputError(
                f"job {first.job_id} waits in the queue of cluster {connection.name}{why}",
                hint=f"Behind it: --queue\nNow, before it, and not started again after a loss: --no-durable\n"
                f"Stop it:   cloudrl jobs stop {connection.job_url(first.job_id)}",
            )

    def withdraw_if_late(self, submission: Submission) -> None:
        """Stop the job that was just submitted where another one came first, unseen by `ensure_free_for`.

        Raises:
            InputError: It was stopped, before verl had started.
        """
        if not submission.uses_transfer_queue:
            return
        rivals = [job for job in self._api.list_jobs() if not job.status.is_terminal and _uses_queue(job)]
        first = min(rivals, key=lambda job: (job.start_time or 0.0, job.submission_id), default=None)
        if first is None or first.submission_id == submission.submission_id:
            return
        if all(job.submission_id != submission.submission_id for job in rivals):
            return  # it has ended already
        self._api.stop_job(submission.submission_id)
        raise InputError(
            f"job {first.submission_id} was submitted to this cluster a moment before; {submission.submission_id} is "
            f"stopped again\n{_WHY}",
            hint=self._ways_out(first, submission),
        )

    def _refuse_hidden_queue(self, jobs: Sequence[RayJob], submission: Submission) -> None:
        """Refuse where a queue belongs to a program whose command says nothing of it, such as `bash train.sh`."""
        actors: tuple[Mapping[str, Any], ...] = ()
        with suppress(CloudrlError):  # a Ray that does not tell its actors
            actors = self._api.state("actors", None)
        for actor in actors:
            if actor.get("name") != CONTROLLER or actor.get("state") == "DEAD":
                continue
            owner = next((job for job in jobs if job.job_id == actor.get("job_id")), None)
            if owner is None:
                raise InputError(
                    "a program that was not submitted as a job is training on this cluster, and this job would stop it"
                    f"\n{_WHY}",
                    hint="Another cluster: --cluster NAME",
                )
            if not owner.status.is_terminal:
                raise self._in_the_way(owner, submission)

    def _in_the_way(self, job: RayJob, submission: Submission) -> InputError:
        return InputError(
            f"job {job.submission_id} is training on this cluster, and a second one would stop it\n{_WHY}",
            hint=self._ways_out(job, submission),
        )

    def _ways_out(self, job: RayJob, submission: Submission) -> str:
        later = f"--after {job.submission_id}" if submission.durable is None else "--queue"
        after = f"When it has ended: {later}\nNow, on another cluster: --cluster NAME"
        return f"{after}\n{way_back(self._api.job_url(job.submission_id))}"


def running_beside(api: RayClient) -> tuple[Neighbour, ...]:
    """All that has not ended on a cluster, also drivers that were not submitted: the agents start no job beside it."""
    running = [job for job in api.list_jobs() if not job.status.is_terminal]
    drivers = [Neighbour(f"program {job_id}, which was not submitted,") for job_id in api.running_drivers()]
    return (*(Neighbour(f"job {job.submission_id}", _uses_queue(job)) for job in running), *drivers)


def wait_for_end(
    connection: Connection,
    job_id: str,
    *,
    on_progress: Callable[[Notice], object],
    wait: Callable[[JobHandle], object] = JobHandle.wait,
) -> None:
    """Wait until a job of the cluster has ended, however it ends.

    Args:
        connection: The cluster.
        job_id: The job's submission id or URL.
        on_progress: Is told what is waited for, and how it has ended.
        wait: Returns when a job has ended.

    Raises:
        InputError: The cluster does not know the job, or the URL is of another cluster.
        Interrupted: Ctrl-C; nothing was submitted.
        ConnectionFailed: The cluster does not answer any more.
    """
    job = job_of_cluster(connection, job_id)
    if not job.done():
        on_progress(Notice(f"waiting for the end of job {job.submission_id}; keep this command running"))
    try:
        on_progress(Notice(f"job {job.submission_id} has ended: {wait(job)}"))
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped waiting for job {job.submission_id}, which keeps running; nothing was submitted",
            hint=way_back(job.url),
        ) from None


def job_of_cluster(connection: Connection, job_id: str) -> JobHandle:
    """A job by its submission id or its URL.

    Raises:
        InputError: The cluster does not know the job, or the URL is of another cluster.
    """
    url = JOB_URL.fullmatch(job_id)
    job = find_job(connection, url["id"] if url else job_id)
    if url and job.url != job_id:
        raise InputError(
            f"{job_id} is not a job of cluster {connection.name}, which has {job.url}",
            hint=f"--after {job.submission_id}",
        )
    return job


def _uses_queue(job: RayJob) -> bool:
    return uses_transfer_queue(job.entrypoint, job.metadata.get("cloudrl_verl"))
