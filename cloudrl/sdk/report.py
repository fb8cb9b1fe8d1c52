"""Reports: what runs have left, asked from their clusters, or read on this machine."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from cloudrl.errors import CloudrlError
from cloudrl.jobs.memory_runs import read_runs
from cloudrl.report import Report, RunReport
from cloudrl.report.tables import memory_table
from cloudrl.sdk.callbacks import OnProgress, notify, silent
from cloudrl.sdk.find import Kept, cluster_of, find_job, find_kept
from cloudrl.sdk.kept_jobs import jobs_of_group
from cloudrl.sdk.report_sources import JobSource, KeptSource, LogSource, RunSource
from cloudrl.verl.keys import DEVICE
from cloudrl.verl.memory.runs import MemorySeen, RunMemory

_LOOK_EVERY_S = 5.0


def report(
    jobs: Sequence[str] = (),
    cluster: str | None = None,
    address: str | None = None,
    folder: Path | None = None,
    *,
    group: str | None = None,
    on_progress: OnProgress = silent,
) -> Report:
    """One look at runs.

    Args:
        jobs: submission ids, `ray://` URLs, or paths of driver logs of this machine; none for the newest job.
        cluster: where the ids are. One on this machine may be down.
        address: of any Ray, likewise.
        folder: of checkpoints, where clusters that are gone have kept their logs, likewise; with `cluster` its provider
            says what it has cost.
        group: draws the jobs as one group of that name; without jobs, all runs that were submitted with it.
        on_progress: receives what cannot be had.

    Raises:
        InputError: there is no such job, or no such file.
        ConnectionFailed: no answer, and nothing is kept here.
    """
    made = ReportSource(jobs, cluster, address, folder, group=group, once=True, on_progress=on_progress)()
    notify(on_progress, *(f"{run.name}: {note}" for run in made.runs for note in run.notes))
    return made


class ReportSource:
    """Looks at runs again and again, and reads what is new. Threads share it.

    The arguments are those of `report`; `clock` gives seconds that never run backwards, `once` says that
    there is no later look, so that a log is read to its end.

    Raises:
        InputError, ConnectionFailed: see `report`.
    """

    def __init__(
        self,
        jobs: Sequence[str] = (),
        cluster: str | None = None,
        address: str | None = None,
        folder: Path | None = None,
        *,
        group: str | None = None,
        once: bool = False,
        clock: Callable[[], float] = time.monotonic,
        on_progress: OnProgress = silent,
    ) -> None:
        self._clock = clock
        self._group = group
        wanted: tuple[str | None, ...] = (*jobs,) or (None,)
        chosen = cluster
        if folder is None and any(map(_is_id, wanted)):
            chosen = cluster_of(None, cluster, address, on_progress=on_progress)
        if group is not None and not jobs:
            wanted = jobs_of_group(group, chosen, address, folder)
        self._runs = [_source(job, chosen if _is_id(job) else cluster, address, folder, once=once) for job in wanted]
        self._lock, self._latest, self._looked_at = threading.Lock(), Report(()), 0.0

    def __call__(self) -> Report:
        """What there is now, or was some seconds ago; the last state, with a note, once the cluster does not answer."""
        with self._lock:
            now = self._clock()
            if self._latest.runs and now - self._looked_at <= _LOOK_EVERY_S:
                return self._latest
            try:
                self._latest = Report(tuple(_told_apart([self._look(run) for run in self._runs])))
            except CloudrlError as failure:
                if not self._latest.runs:
                    raise
                return _outdated(self._latest, failure.message)
            self._looked_at = now
            return self._latest

    def _look(self, source: RunSource) -> RunReport:
        run = _with_memory(source.look())
        return run if self._group is None else replace(run, group=self._group)


def _is_id(job: str | None) -> bool:
    """Whether it is a submission id, or stands for the newest job: not a URL, nor the path of a log."""
    return job is None or not ("/" in job or job.endswith(".log"))


def _source(job: str | None, cluster: str | None, address: str | None, folder: Path | None, *, once: bool) -> RunSource:
    if job is not None and not _is_id(job) and "://" not in job:
        return LogSource(Path(job).expanduser(), once=once)
    if folder is not None:
        return KeptSource(Kept(folder, job), cluster)
    try:
        return JobSource(find_job(job, cluster, address))
    except CloudrlError:
        archived = find_kept(job, cluster, address)
        if archived is None:
            raise
        return KeptSource(archived)


def _with_memory(run: RunReport) -> RunReport:
    """The run with what it has needed beside the estimate, which this machine has kept if it has sent the job."""
    seen = MemorySeen()
    for step in run.steps:
        seen.add(step.metrics)
    if not seen.allocated_gib or run.config.get(DEVICE) == "cpu":  # PyTorch counts what a process needs there, too
        return run
    submission_id = run.job.rstrip("/").rpartition("/")[2]
    kept = next((each for each in read_runs() if each.submission_id == submission_id), RunMemory(submission_id))
    return replace(run, tables=(*run.tables, memory_table(seen.of(kept))))


def _outdated(last: Report, why: str) -> Report:
    return Report(tuple(replace(run, notes=(f"not up to date: {why}", *run.notes)) for run in last.runs))


def _told_apart(runs: Sequence[RunReport]) -> list[RunReport]:
    """Runs of one name, of two clusters for example, get a number."""
    names = [run.name for run in runs]
    return [
        run if names.count(run.name) == 1 else replace(run, name=f"{run.name} ({place})")
        for place, run in enumerate(runs, 1)
    ]
