"""A submitted job, from any machine that reaches the cluster."""

from __future__ import annotations

import math
import shlex
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from cloudrl.errors import ConnectionFailed, FailedError, InputError, JobFailed, WaitTimeout, without_login
from cloudrl.jobs.durable_status import status_of, waiting_job, waits_text
from cloudrl.jobs.events import Ended, Event, EventReader, Line, has_progress
from cloudrl.jobs.pools import mode_of_job
from cloudrl.jobs.supervised import find_durable
from cloudrl.logs.causes import Cause, Finding
from cloudrl.logs.causes.evidence import last_lines
from cloudrl.logs.sent_files import by_own_names
from cloudrl.protocol import job_calls
from cloudrl.protocol.backoff import Backoff, retry
from cloudrl.protocol.durable_jobs import Attempt, DurableJob
from cloudrl.protocol.mirrors import MirrorStatus
from cloudrl.transport import Connection
from cloudrl.transport.log_stream import LogSource, choose_log, follow_log, split_lines
from cloudrl.transport.ray_job import JobStatus, RayJob
from cloudrl.verl.async_modes import ASYNC
from cloudrl.verl.metrics import FailedPrompts, Step

WATCH = "cloudrl watch"
FOLLOW = "cloudrl jobs logs -f"
"""For jobs that do not train."""
_TAIL_LINES = 20


@dataclass(frozen=True)
class JobHandle:
    """One job on one cluster. Prints as `ray://cluster/submission_id`, on a plain Ray as `ray://host:port/...`."""

    connection: Connection
    submission_id: str
    name: str
    """The run: its checkpoint folder, its experiment."""
    checkpoint_dir: str | None = None
    """Absolute, on the nodes; None for a job that cloudrl did not submit."""
    total_steps: int | None = None
    notes: tuple[str, ...] = ()
    """What its planning has to say to the user, one sentence each; only whoever submitted it has them."""

    @property
    def url(self) -> str:
        """The job as one word, to be passed on or noted down."""
        return self.connection.job_url(self.submission_id)

    def __str__(self) -> str:
        return self.url

    def status(self) -> RayJob:
        """What Ray says of the job now; PENDING for one that the agents have not yet handed to Ray.

        Raises:
            InputError: The cluster does not know it.
        """
        try:
            return self.connection.ray().get_job(self.submission_id)
        except InputError:
            left = find_durable(self.connection, self.submission_id)
            if left is None or not left.may_come(self.submission_id):
                raise
            return waiting_job(left, self.submission_id)

    def attempts(self) -> tuple[Attempt, ...]:
        """What the cluster's agents have written down of each attempt; empty for a job that was handed to Ray.

        Raises:
            ConnectionFailed: no answer.
        """
        left = find_durable(self.connection, self.submission_id)
        return left.attempts if left is not None else ()

    def mirror(self) -> MirrorStatus | None:
        """How far the mirror of a durable job is; None without a mirror, and before its first attempt runs.

        Raises:
            ConnectionFailed: no answer.
        """
        left, agent = find_durable(self.connection, self.submission_id), self.connection.agent()
        if left is None or agent is None or not left.mirror:
            return None
        mirrors = agent.status().mirrors
        return next((each for each in mirrors if (each.run, each.mirror) == (left.run, left.mirror)), None)

    def done(self) -> bool:
        """Whether it has ended, however; a durable job once its agents do not try it again."""
        left = find_durable(self.connection, self.submission_id)
        return self.status().status.is_terminal if left is None else status_of(left).is_terminal

    def waits_for(self) -> str:
        """What the next attempt of a durable job waits for; "" while one runs, after its end, and for another job."""
        left = find_durable(self.connection, self.submission_id)
        return "" if left is None or left.outcome is not None or left.open_attempt is not None else waits_text(left)

    def cancel(self) -> bool:
        """Ask the job to stop, for good, and return at once; False when it was not running."""
        left, agent = find_durable(self.connection, self.submission_id), self.connection.agent()
        if left is not None and agent is not None:
            return left.outcome is None and job_calls.stop_job(agent, left.job_id)
        if self.done():  # Ray says that it stops one that has ended, too, while its supervisor is still there
            return False
        return self.connection.ray().stop_job(self.submission_id)

    def logs(self) -> Iterator[str]:
        """The lines of the log as it is now."""
        return split_lines(self.log_bytes())

    def log_bytes(self, offset: int = 0) -> Iterator[bytes]:
        """The log from byte `offset` on, as it is now.

        Raises:
            InputError: The job has not started, or the cluster does not know it.
            ConnectionFailed: no answer.
        """
        try:
            log = self._find_log()
        except InputError:
            reason = self.status().message
            later = f"Once it has started: {FOLLOW} {self.url}"
            raise InputError(f"job {self.submission_id} has no log: {reason}", hint=later) from None
        return log.read(offset, follow=False)

    def follow(
        self,
        *,
        lines: bool = False,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        on_break: Callable[[ConnectionFailed], None] = lambda _: None,
        on_silence: Callable[[RayJob], None] = lambda _: None,
    ) -> Iterator[Event]:
        """Events from the start of the log until the job has ended: stages of the start, steps, and `Ended` at last.

        A step is one `Progress`, whose `reported` has all metrics of verl's; a validation before training is a `Step`.

            for event in job.follow():
                print(event)  # one line each: step 1/20  reward 0.328  8.9 s/step

        A broken connection is taken up again without a lost or doubled line.

        Args:
            lines: Also yield every line of the log, as a `Line` before what it says, and each step as a `Step` before
                its `Progress`.
            backoff: Pauses after a break, and when to give up.
            clock: Seconds that never run backwards.
            sleep: Waits that many seconds.
            on_break: Called with each failure that is going to be retried.
            on_silence: Called with what Ray says of the job, every two seconds or more often while nothing is logged.

        Raises:
            ConnectionFailed: Nothing answered for `backoff.give_up_s`; the job goes on.
            FailedError: The cluster is over, or was replaced by another one, or started again without the job.
        """
        reader = EventReader(self.total_steps)
        latest: deque[RayJob] = deque(maxlen=1)

        def is_over() -> bool:
            latest.append(self.status())
            on_silence(latest[0])
            return latest[0].status.is_terminal

        def broke(failure: ConnectionFailed) -> None:
            self._ensure_cluster_alive()
            on_break(failure)

        find_log = partial(self._find_log, sleep)
        chunks = follow_log(find_log, is_over, backoff=backoff, clock=clock, sleep=sleep, on_break=broke)
        with self._raise_if_gone():
            yield from (event for event in reader.read(split_lines(chunks)) if lines or not _is_detail(event))
        yield Ended(latest[0].status, latest[0].message, self._search(latest[0], reader.last_lines).cause)

    def cause(self) -> Cause | None:
        """The first root cause of its failure, over all nodes; None where it has not failed, or nothing says why.

        Raises:
            InputError: The cluster does not know the job.
            ConnectionFailed: no answer.
        """
        return self.find_cause().cause

    def find_cause(self) -> Finding:
        """The same, and whether all that there is of the job could be looked at in time.

        A job whose prompts fail one after the other counts as failed: in an asynchronous mode it never ends.
        """
        from cloudrl.jobs.warnings import prompt_warnings

        job, failed = self.status(), FailedPrompts()
        may_go_on = mode_of_job(job) in ASYNC and job.status in (JobStatus.RUNNING, JobStatus.STOPPED)
        lines: Iterable[str] = ()
        if may_go_on or job.status is JobStatus.FAILED:
            # the node that the driver was on may be gone, and Ray's state is with the head
            with suppress(ConnectionFailed, InputError):  # it may have ended before it came to Ray
                lines = last_lines(failed.passing(self.logs()))
        if may_go_on and any(prompt_warnings(failed.count, failed.exception, self.url)):
            job = replace(job, status=JobStatus.FAILED)
        return self._search(job, lines)

    def _search(self, job: RayJob, log_end: Iterable[str]) -> Finding:
        if job.status is not JobStatus.FAILED:
            return Finding(None)
        from cloudrl.logs.causes.finder import search
        from cloudrl.logs.causes.gather import gather

        return search(gather(self.connection, job, log_end))

    def wait(self, timeout_s: float | None = None) -> JobStatus:
        """Wait until the job has ended, however, without reading its log; a broken connection is taken up again.

        A durable job has ended once its agents do not try it again.

        Args:
            timeout_s: The most to wait; None for as long as it takes.

        Raises:
            WaitTimeout: It has not ended after `timeout_s`.
            ConnectionFailed: no answer.
            FailedError: The cluster is over, or was started again without the job.
        """
        ends_at = math.inf if timeout_s is None else time.monotonic() + timeout_s
        ask = self._status_with_retry if self._left() is None else self._durable_status
        while not (status := ask()).is_terminal:
            if time.monotonic() > ends_at:
                raise WaitTimeout(
                    f"job {self.submission_id} is still {status} after {timeout_s:g} s",
                    hint=f"Look again: cloudrl jobs status {self.url}",
                )
            time.sleep(0.5)
        return status

    def result(self, timeout_s: float | None = None) -> Ended:
        """Wait until the job has succeeded, and read its log.

        Raises:
            JobFailed: It failed or was stopped; the message says what of, as `cause` has it.
            WaitTimeout: It has not ended after `timeout_s`.
            ConnectionFailed: no answer.
        """
        is_durable = self._left() is not None
        if timeout_s is not None or is_durable:
            self.wait(timeout_s)
        newest = self._newest_attempt() if is_durable else self
        ended = deque(newest.follow(), maxlen=1).pop()
        assert isinstance(ended, Ended)  # noqa: S101 - what `follow` promises
        raise_for_status(newest, ended)
        return ended

    def exception(self, timeout_s: float | None = None) -> FailedError | None:
        """Wait until the job has ended; what `result` would raise, None when it succeeded.

        Raises:
            WaitTimeout: It has not ended after `timeout_s`.
            ConnectionFailed: no answer.
        """
        try:
            self.result(timeout_s)
        except FailedError as failure:
            return failure
        return None

    def _left(self) -> DurableJob | None:
        """The job as the agents know it; None where it was handed to Ray."""
        return retry(
            lambda: find_durable(self.connection, self.submission_id), on_break=lambda _: self._ensure_cluster_alive()
        )

    def _durable_status(self) -> JobStatus:
        left = self._left()
        return JobStatus.RUNNING if left is None else status_of(left)  # None: the agents have just started

    def _newest_attempt(self) -> JobHandle:
        """Raises: JobFailed: it has ended before its first attempt."""
        left = self._left()
        if left is not None and left.outcome is not None and not left.attempts:
            raise JobFailed(f"job {left.job_id}: {left.outcome.reason}", hint="cloudrl jobs list")
        return replace(self, submission_id=left.submission_id) if left is not None else self

    def _status_with_retry(self) -> JobStatus:
        """Once somebody answers, as long as the cluster is there and knows the job."""
        with self._raise_if_gone():
            return retry(self.status, on_break=lambda _: self._ensure_cluster_alive()).status

    @contextmanager
    def _raise_if_gone(self) -> Generator[None]:
        """Say why a cluster that knew the job does not know it any more."""
        try:
            yield
        except InputError as failure:
            raise FailedError(
                f"{without_login(self.connection.ray_url)} does not know {self.submission_id!r} any more: "
                "the cluster was restarted, and its jobs are gone",
                hint=f"Submit it again, and it continues from the newest complete step: --name {self.name}",
            ) from failure

    def _find_log(self, sleep: Callable[[float], None] = time.sleep) -> LogSource:
        return choose_log(self.connection.ray(), self.connection.agent(), self.submission_id, sleep=sleep)

    def _ensure_cluster_alive(self) -> None:
        """Raise when whoever made the connection knows that the cluster will not answer any more."""
        if self.connection.token_source is not None:
            self.connection.token_source.ensure_alive()


def way_back(url: str, command: str = WATCH) -> str:
    """How to follow the job at `url` again, and how to stop it."""
    return f"Follow it: {command} {url}\nStop it:   cloudrl jobs stop {url}"


def next_commands(job: JobHandle) -> str:
    """What one does after a job that has succeeded: bring the model home, look at the run, ask the model."""
    report = f"Report: cloudrl report {job.url}"
    if job.connection.cluster_id is None:  # the checkpoints of a plain Ray cluster are not ours to list
        return report
    merge = f"cloudrl checkpoints merge --cluster {shlex.quote(job.connection.name)} --name {shlex.quote(job.name)}"
    return f"Merge:  {merge} --to ./model\n{report}\nServe:  vllm serve ./model"


def raise_for_status(job: JobHandle, ended: Ended) -> None:
    """Raise `JobFailed` unless the job succeeded."""
    if ended.succeeded:
        return
    said = by_own_names(ended.message.strip()).splitlines()[-_TAIL_LINES:]
    what, hint = "\n".join(said), f"The log: cloudrl jobs logs {job.url}"
    if ended.cause is not None:
        what, remedy = f"{ended.cause}", ended.cause.remedy
        hint = f"{remedy}\n" * bool(remedy) + f"More of it: cloudrl why {job.url}"
    raise JobFailed(f"job {job.submission_id} ended as {ended.status}: {what}", hint=hint)


def find_job(connection: Connection, submission_id: str) -> JobHandle:
    """The handle of a job that was submitted before, by whomever; of one with several attempts the newest.

    Raises:
        InputError: The cluster does not know it.
    """
    left = None
    with suppress(ConnectionFailed):  # Ray may know it all the same
        left = find_durable(connection, submission_id)
    if left is not None:
        newest = left.submission_id if submission_id == left.job_id else submission_id
        return job_handle(connection, newest, left.request.get("metadata") or {})
    return job_handle(connection, submission_id, connection.ray().get_job(submission_id).metadata)


def newest_job(connection: Connection) -> JobHandle:
    """The job that was submitted last.

    Raises:
        InputError: Nothing was submitted to this cluster.
    """
    jobs = connection.ray().list_jobs()
    if not jobs:
        raise InputError(
            f"nothing was submitted to {without_login(connection.ray_url)}", hint="cloudrl submit grpo-tiny"
        )
    return job_handle(connection, jobs[-1].submission_id, jobs[-1].metadata)


def job_handle(
    connection: Connection, submission_id: str, metadata: Mapping[str, str], notes: tuple[str, ...] = ()
) -> JobHandle:
    """A job by what Ray keeps with it; one that somebody else has submitted is a run of its own."""
    steps = metadata.get("cloudrl_total_steps", "")
    return JobHandle(
        connection=connection,
        submission_id=submission_id,
        name=metadata.get("job_name", submission_id),
        checkpoint_dir=metadata.get("cloudrl_checkpoints"),
        total_steps=int(steps) if steps.isdecimal() and len(steps) <= 18 else None,
        notes=notes,
    )


def _is_detail(event: Event) -> bool:
    """Whether an event repeats what another one says in one line."""
    return isinstance(event, Line) or (isinstance(event, Step) and has_progress(event))
