"""A job: a recipe, what is asked for beyond it, its way to a cluster, and its end."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from cloudrl import jobs, recipes
from cloudrl.errors import CheckpointError, ConnectionFailed, FailedError, InputError, Interrupted, JobFailed
from cloudrl.jobs import JobHandle, Progress, Submission, SubmitOptions
from cloudrl.jobs.durable_status import waits_text
from cloudrl.jobs.events import Event
from cloudrl.jobs.handle import WATCH, raise_for_status, way_back
from cloudrl.jobs.memory_runs import keep_run, read_runs
from cloudrl.jobs.supervised import find_durable, wait_for_attempt, wait_for_ray, wait_for_verdict
from cloudrl.jobs.warnings import StepWarnings, prompt_warnings
from cloudrl.protocol import job_calls
from cloudrl.protocol.durable_jobs import DurableJob, Result
from cloudrl.protocol.job_phases import JobPhase
from cloudrl.sdk.callbacks import Confirm, Notice, OnProgress, Question, Waiting, notify, silent, unattended
from cloudrl.sdk.network_question import network_question
from cloudrl.spec import Job
from cloudrl.transport import Connection
from cloudrl.transport.ray_job import JobStatus, RayJob
from cloudrl.verl.memory.runs import MemorySeen, RunMemory
from cloudrl.verl.metrics import FailedPrompts


def recipe(
    name_or_path: str | os.PathLike[str], *, model: str | None = None, algorithm: str | None = None, **changes: Any
) -> Job:
    """A recipe by its name, or a job of your own by the path of its file.

        job = cloudrl.recipe("grpo", model="Qwen/Qwen2.5-3B-Instruct", overrides={"trainer.test_freq": 5})
        print(job.overrides)

    Args:
        name_or_path: one of `cloudrl.recipes.names()`, or a `.yml` file.
        model: another model than the recipe's.
        algorithm: another algorithm than the recipe's, one of `cloudrl.recipes.algorithms()`.
        changes: other fields of `Job`, for example `overrides={"trainer.test_freq": 5}`, which are added.

    Raises:
        SpecError: the recipe or algorithm is unknown, its file is not one, or a change does not fit.
    """
    job = recipes.load(name_or_path)
    if algorithm is not None:
        job = recipes.with_algorithm(job, algorithm)
    job = job.with_overrides(changes.pop("overrides", {}))
    return job.replace(**({"model": model} if model else {}), **changes)


def prepare(
    connection: Connection, job: Job, options: SubmitOptions, *, on_progress: OnProgress = silent
) -> Submission:
    """Complete a job for a cluster that is up; nothing changes there yet.

    Raises:
        InputError: job and cluster do not go together.
        CheckpointError: the run of this name has steps, and its ranks could load none of them.
        ConnectionFailed: no answer.
    """
    snapshot = jobs.take_snapshot(connection, job, options, os.environ)
    return jobs.prepare(job, options, snapshot, on_progress=on_progress)


def submit(
    connection: Connection,
    job: Job,
    options: SubmitOptions,
    *,
    after: str | None = None,
    confirm: Confirm = unattended,
    on_progress: OnProgress = silent,
) -> JobHandle:
    """Complete a job for a cluster that is up, and send it.

    Args:
        connection: the cluster.
        job: the recipe.
        options: what is asked for beyond it.
        after: a job of the cluster by its id or URL, whose end is waited for first. A durable job waits with the
            agents, behind all that are there. Without it one that was not asked to be durable does not wait: it is
            refused while another one is in the way.
        confirm: is asked where NCCL is not going to use the nodes' fast network.
        on_progress: receives notes, uploads, what is waited for, and the handle.

    Raises:
        InputError: job and cluster do not go together, another job is in the way, the one to wait for is unknown, or
            the answer was no.
        CheckpointError: the run of this name has steps, and its ranks could load none of them.
        ConnectionFailed: no answer.
        Interrupted: Ctrl-C while the other job was waited for.
    """
    waits_there = after is not None and _waits_with_agents(connection, job, options, after)
    if after is not None and not waits_there:
        jobs.wait_for_end(connection, after, on_progress=on_progress)
    snapshot = jobs.take_snapshot(connection, job, options, os.environ, joins_queue=waits_there)
    submission = jobs.prepare(job, options, snapshot, on_progress=on_progress)
    question = network_question(snapshot.cluster, submission)
    if question is not None and not confirm(question):
        raise InputError("nothing was submitted", hint=f"What the nodes lack: cloudrl status {connection.name}")
    joins_queue = waits_there or bool(options.durable)
    return jobs.send(connection, submission, joins_queue=joins_queue, on_progress=on_progress)


def _waits_with_agents(connection: Connection, job: Job, options: SubmitOptions, after: str) -> bool:
    """Whether the agents start a job when another one has ended, and not this process.

    What is wrong with it is found now, and not when the other one has ended.
    """
    jobs.job_of_cluster(connection, after)
    with suppress(CheckpointError):  # the other job may be about to save
        snapshot = jobs.take_snapshot(connection, job, options, os.environ, joins_queue=True)
        return jobs.prepare(job, options, snapshot).durable is not None
    return bool(options.durable)


def follow(
    job: JobHandle,
    *,
    on_progress: OnProgress = silent,
    on_silence: Callable[[RayJob], None] = lambda _: None,
    command: str = WATCH,
    warns: bool = True,
) -> Progress | None:
    """Follow a job to its end, over all attempts of one that goes on by itself; returns where it stood last.

    The arguments and errors are those of `follow_attempt`.
    """
    left = None
    with suppress(ConnectionFailed):
        left = find_durable(job.connection, job.submission_id)

    def follow_one(attempt: JobHandle) -> Progress | None:
        told: dict[str, Any] = {"on_progress": on_progress, "on_silence": on_silence, "command": command}
        return follow_attempt(attempt, is_durable=left is not None, warns=warns, **told)

    if left is None:
        return follow_one(job)
    try:
        return _follow_attempts(job, left, follow_one, on_progress)
    except KeyboardInterrupt:
        raise no_longer_following(job, command, is_durable=True) from None


def _follow_attempts(
    job: JobHandle, left: DurableJob, follow_one: Callable[[JobHandle], Progress | None], on_progress: OnProgress
) -> Progress | None:
    number = max((each.number for each in left.attempts if each.submission_id == job.submission_id), default=1)
    told, last = "", None

    def report_wait(waiting: DurableJob) -> None:
        nonlocal told
        text = waits_text(waiting)
        if text != told:
            notify(on_progress, f"{waiting.job_id}: {text}")
        told = text

    while True:
        left = wait_for_attempt(job.connection, left.job_id, number, on_wait=report_wait)
        if len(left.attempts) < number:
            if left.outcome is not None and left.outcome.result is Result.SUCCEEDED:
                return last
            reason = left.outcome.reason if left.outcome is not None else ""
            ended = replace(job, submission_id=left.submission_id)
            no_attempt = f"cloudrl checkpoints list --cluster {shlex.quote(job.connection.name)}"
            raise JobFailed(
                f"job {left.job_id}: {reason}", hint=f"cloudrl why {ended.url}" if left.attempts else no_attempt
            )
        attempt = replace(job, submission_id=left.attempts[number - 1].submission_id)
        try:
            wait_for_ray(job.connection, left.job_id, attempt.submission_id)
            last = follow_one(attempt) or last
        except FailedError:
            if not _goes_on(job, left.job_id, number):
                raise
        else:
            if not _goes_on(job, left.job_id, number):
                return last
        number += 1


def _goes_on(job: JobHandle, job_id: str, number: int) -> bool:
    """Whether the agents try a job again after this attempt; not if they do not answer, as the cluster may be over."""
    try:
        judged = wait_for_verdict(job.connection, job_id, number)
    except ConnectionFailed:
        return False
    return judged.outcome is None or len(judged.attempts) > number


def follow_attempt(
    job: JobHandle,
    *,
    on_progress: OnProgress = silent,
    on_silence: Callable[[RayJob], None] = lambda _: None,
    command: str = WATCH,
    warns: bool = True,
    is_durable: bool | None = None,
) -> Progress | None:
    """Follow one submission to its end; returns where it stood last.

    Args:
        job: the job.
        on_progress: receives every event, and every break of the connection.
        on_silence: see `JobHandle.follow`.
        command: that leads back to the job.
        warns: report once what its steps say is wrong with the training, such as rewards that are all 0.
        is_durable: whether the agents start the job again after a loss; None if that is not known.

    Raises:
        JobFailed: it failed or was stopped.
        Interrupted: Ctrl-C; the job goes on.
        ConnectionFailed: the cluster no longer answers; the job goes on.
    """
    start, failing = _Start(on_progress), _FailingPrompts(job, on_progress if warns else silent)

    def report_break(failure: ConnectionFailed) -> None:
        notify(on_progress, f"connection lost, trying again: {failure.message}")

    def report_silence(said: RayJob) -> None:
        start.report()
        on_silence(said)

    last, seen, warnings = None, MemorySeen(), StepWarnings()
    try:
        for event in job.follow(lines=True, on_break=report_break, on_silence=report_silence):
            on_progress(event)
            start.add(event)
            failing.add(event)
            if isinstance(event, jobs.Progress):
                last = event
            elif isinstance(event, jobs.Step):
                seen.add(event.metrics)
                for warning in warnings.add(event) if warns else ():
                    on_progress(Notice(f"warning: {warning.seen}", warning.remedy))
            elif isinstance(event, jobs.Ended):
                _report_memory(job, seen, on_progress)
                raise_for_status(job, event)
    except KeyboardInterrupt:
        raise no_longer_following(job, command, is_durable=is_durable) from None
    except ConnectionFailed as failure:
        unless = "unless its cluster is gone" if is_durable else "unless its cluster is gone or started again"
        message = f"{failure.message}\njob {job.submission_id} keeps running, {unless}"
        raise type(failure)(message, hint=way_back(job.url, command)) from failure
    return last


class _Start:
    """Reports in which stage a job is before its first step, and since when."""

    def __init__(self, on_progress: OnProgress, clock: Callable[[], float] = time.monotonic) -> None:
        self._on_progress, self._clock = on_progress, clock
        self._stage, self._since = jobs.Starting("starting the job", JobPhase.PLACEMENT), clock()
        self._is_over = False

    def add(self, event: Event) -> None:
        """The next event of the job."""
        if isinstance(event, jobs.Starting):
            self._stage, self._since = event, self._clock()
            self.report()
        elif isinstance(event, (jobs.Step, jobs.Ended)):
            self._is_over = True

    def report(self) -> None:
        """Say where it is, unless it has made a step."""
        if not self._is_over:
            self._on_progress(Waiting(self._stage, self._clock() - self._since))


class _FailingPrompts:
    """Warns once when prompts fail one after the other and no step comes."""

    def __init__(self, job: JobHandle, on_progress: OnProgress) -> None:
        self._url, self._on_progress = job.url, on_progress
        self._failed, self._is_told = FailedPrompts(), False

    def add(self, event: Event) -> None:
        """The next event of the job."""
        if isinstance(event, jobs.Step):
            self._failed = FailedPrompts()
        elif isinstance(event, jobs.Line) and not self._is_told:
            self._failed.read(event.text)
            for warning in prompt_warnings(self._failed.count, self._failed.exception, self._url):
                self._on_progress(Notice(f"warning: {warning.seen}", warning.remedy))
                self._is_told = True


def _report_memory(job: JobHandle, seen: MemorySeen, on_progress: OnProgress) -> None:
    """Put what the job has needed beside the estimate, and keep both for later verdicts.

    A job without an estimate is left out: on CPUs verl reports the memory of a process.
    """
    is_estimated = any(run.submission_id == job.submission_id and run.estimate_gib for run in read_runs())
    if seen.allocated_gib and is_estimated:
        run = keep_run(seen.of(RunMemory(job.submission_id)))
        notify(on_progress, f"memory: {run.sentence}")


def no_longer_following(job: JobHandle, command: str = WATCH, *, is_durable: bool | None = None) -> Interrupted:
    """What Ctrl-C ends with; `command` leads back to the job. The arguments are those of `follow_attempt`."""
    message = f"no longer following; job {job.submission_id} keeps running"
    if is_durable is not None:
        again = "starts again by itself" if is_durable else "does not start again"
        message += f" without this computer, and {again} if a machine is lost"
    return Interrupted(message, hint=way_back(job.url, command))


def stop_job(job: JobHandle, *, confirm: Confirm = unattended, on_progress: OnProgress = silent) -> JobStatus:
    """Stop a job and wait until it has ended; returns how. Its checkpoints stay.

    Raises:
        InputError: the answer was no.
        ConnectionFailed: it has not ended after some minutes.
    """
    left = find_durable(job.connection, job.submission_id)
    if left is not None and left.outcome is None:
        return _stop_for_good(job, left, confirm, on_progress)
    before = job.status().status
    if not before.is_terminal and not confirm(Question(f"Stop job {job.submission_id}?")):
        raise InputError(f"{job.submission_id} keeps running")
    job.cancel()
    return _report_stop(job, before, on_progress)


def _stop_for_good(job: JobHandle, left: DurableJob, confirm: Confirm, on_progress: OnProgress) -> JobStatus:
    """The agents do not start it again."""
    if not confirm(Question(f"Stop job {left.job_id}?")):
        raise InputError(f"{left.job_id} goes on")
    agent = job.connection.agent()
    assert agent is not None  # noqa: S101  it has told of the job
    job_calls.stop_job(agent, left.job_id)
    if left.open_attempt is None:
        on_progress(Notice(f"{left.job_id} was waiting, and does not start any more"))
        return JobStatus.STOPPED
    running = replace(job, submission_id=left.submission_id)
    return _report_stop(running, JobStatus.RUNNING, on_progress)


def _report_stop(job: JobHandle, before: JobStatus, on_progress: OnProgress) -> JobStatus:
    after = job.wait(timeout_s=180.0)
    was_not = f"{job.submission_id} was not running: {before}"
    on_progress(Notice(was_not if before.is_terminal else f"{job.submission_id} has ended: {after}"))
    if job.checkpoint_dir is not None and not before.is_terminal:
        stay = f"checkpoints stay in {job.checkpoint_dir}; resume from them with --name {job.name}"
        on_progress(Notice(stay))
    return after
