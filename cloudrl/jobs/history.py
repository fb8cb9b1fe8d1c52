"""The steps of a run as one series, over all jobs that have trained it: attempts, the first one first."""

from collections.abc import Iterable, Iterator
from contextlib import suppress

from cloudrl.errors import ConnectionFailed
from cloudrl.jobs.handle import JobHandle, job_handle
from cloudrl.verl.metrics import Metrics, Step, parse_step


def joined(attempts: Iterable[Iterable[Step]]) -> tuple[Step, ...]:
    """One series, by step.

    What was trained beyond the checkpoint that an attempt resumes from is lost, so a step replaces those of the same
    and of higher numbers that came before it. A validation without training, with which an attempt begins, is added to
    the step that it validates.
    """
    series: list[Step] = []
    for step in (step for attempt in attempts for step in attempt):
        add_step(series, step)
    return tuple(series)


def add_step(series: list[Step], step: Step) -> None:
    """The next step of a series, as `joined` has it."""
    while series and series[-1].step > step.step:
        series.pop()
    before = series.pop() if series and series[-1].step == step.step else step
    is_added = before.step_s is None or step.step_s is None
    series.append(Step(step.step, Metrics({**before.metrics, **step.metrics})) if is_added else step)


def read_steps(lines: Iterable[str]) -> Iterator[Step]:
    """The steps that a log reports."""
    return filter(None, map(parse_step, lines))


def find_attempts(job: JobHandle) -> tuple[JobHandle, ...]:
    """The jobs of the cluster that have trained the job's run up to and with this one, the first one first.

    Raises:
        ConnectionFailed: no answer.
    """
    segments = []
    for other in job.connection.ray().list_jobs():
        if other.submission_id == job.submission_id:
            break
        handle = job_handle(job.connection, other.submission_id, other.metadata)
        if (handle.name, handle.checkpoint_dir) == (job.name, job.checkpoint_dir):
            segments.append(handle)
    return (*segments, job)


def earlier_steps(job: JobHandle) -> tuple[Step, ...]:
    """The series that the attempts before this job have left; that of a lost node's log is missing.

    Raises:
        ConnectionFailed: no answer.
    """
    attempts: list[list[Step]] = []
    for attempt in find_attempts(job)[:-1]:
        with suppress(ConnectionFailed):
            attempts.append(list(read_steps(attempt.logs())))
    return joined(attempts)
