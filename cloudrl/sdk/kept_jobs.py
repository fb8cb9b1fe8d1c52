"""Jobs as the archive beside the checkpoints has them: of a cluster that is gone, of an earlier Ray, of a group."""

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cloudrl.errors import CloudrlError, InputError
from cloudrl.foreign import Malformed
from cloudrl.jobs import JobHandle
from cloudrl.jobs.history import find_attempts
from cloudrl.logs.archive import Archive, FolderArchive
from cloudrl.logs.causes.kept import kept_ids
from cloudrl.logs.cluster_archive import ask_cluster
from cloudrl.report.log import LogReading
from cloudrl.sdk.find import Kept, find, find_kept
from cloudrl.transport.ray_job import JobStatus, RayJob
from cloudrl.verl.keys import EXPERIMENT, LOCAL_DIR


def runs_of(archive: Archive, jobs: Sequence[str]) -> list[str]:
    """The runs of clusters that jobs were trained in."""
    logs = (archive.driver_log(job) for job in jobs)
    return [log.run for log in logs if log is not None]


class KeptJob(NamedTuple):
    """A job in an archive, with its log."""

    job: RayJob
    reading: LogReading

    @property
    def run(self) -> tuple[str | None, str | None]:
        """What it has trained, by name and folder; its log has both where Ray's records are lost."""
        return _run_of(self.job, self.reading.config or {})


def _run_of(job: RayJob, config: Mapping[str, str]) -> tuple[str | None, str | None]:
    names = {"job_name": EXPERIMENT, "cloudrl_checkpoints": LOCAL_DIR}
    name, folder = (job.metadata.get(label) or config.get(key) for label, key in names.items())
    return name, folder


def kept_job(archive: Archive, id_: str) -> KeptJob:
    """A job in an archive."""
    reading, log = LogReading(), archive.driver_log(id_)
    reading.read(archive.lines(log) if log is not None else ())
    return KeptJob(_record(archive, id_), reading)


def _record(archive: Archive, id_: str) -> RayJob:
    """What Ray said of a job when it had ended; of unknown status where that is not kept."""
    state = archive.state(id_)
    try:
        return replace(RayJob.read(state.job if state is not None else {}), submission_id=id_)
    except Malformed:  # no record of Ray's
        return RayJob(id_, JobStatus.UNKNOWN)


def kept_attempts(
    archive: Archive, run: tuple[str | None, str | None], *, until: str, others: Container[str] = ()
) -> Iterator[KeptJob]:
    """The jobs that have trained a run before that one, the first one first, but for those that are known."""
    for id_ in archive.jobs:
        if id_ == until or None in run:
            return
        if id_ in others:
            continue
        record = _record(archive, id_)
        if record.metadata and _run_of(record, {}) != run:
            continue  # and its log need not be read
        job = kept_job(archive, id_)
        if job.run == run:
            yield job


def lost_attempts(job: JobHandle) -> list[KeptJob]:
    """The attempts before a job that an earlier Ray of its cluster had, as far as its nodes have kept them."""
    agent = job.connection.agent()
    if agent is None:
        return []
    with suppress(CloudrlError):
        status = agent.status()
        ranks = [node.rank for node in status.nodes]
        here = FolderArchive(Path(status.facts.checkpoint_dir)) if job.connection.nodes_are_here else None
        archive = Archive(here or ask_cluster(job.connection.name, agent, ranks))
        ids = {attempt.submission_id for attempt in find_attempts(job)}
        return list(kept_attempts(archive, (job.name, job.checkpoint_dir), until=job.submission_id, others=ids))
    return []


def jobs_of_group(group: str, name: str | None, address: str | None, folder: Path | None) -> tuple[str, ...]:
    """The submission ids of the runs that were submitted with `--group`, of each run its newest job.

    Args:
        group: the label.
        name: of the cluster.
        address: of any Ray.
        folder: of checkpoints, in which clusters that are gone have kept their logs; in place of both.

    Raises:
        InputError: no run has that label.
        ConnectionFailed: no answer, and nothing is kept here.
    """
    newest = {
        (job.metadata.get("job_name"), job.metadata.get("cloudrl_checkpoints")): job.submission_id
        for job in _all_jobs(name, address, folder)
        if job.metadata.get("cloudrl_group") == group
    }
    if not newest:
        raise InputError(
            f"no run has the label {group!r}", hint="Name the jobs: cloudrl report JOB JOB\nSee: cloudrl jobs list"
        )
    return tuple(newest.values())


def _all_jobs(name: str | None, address: str | None, folder: Path | None) -> Sequence[RayJob]:
    """The jobs of a cluster, the oldest first."""
    if folder is not None:
        kept = Kept(folder)
    else:
        try:
            return find(name, address).jobs()
        except CloudrlError:
            found = find_kept(None, name, address)
            if found is None:
                raise
            kept = found
    archive = Archive(FolderArchive(kept.folder))
    return [_record(archive, id_) for id_ in kept_ids(archive, kept.cluster, kept.run)]
