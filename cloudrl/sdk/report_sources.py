"""Where a report comes from: a cluster that answers, what is kept of one that is gone, or a log on this machine."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

from cloudrl.checkpoints.sources import ClusterSource, LocalSource
from cloudrl.errors import CloudrlError, ConnectionFailed, InputError
from cloudrl.jobs import JobHandle
from cloudrl.jobs.archive import Archive, FolderArchive
from cloudrl.jobs.causes import Cause, Evidence, LogTail, find_cause
from cloudrl.jobs.causes.kept import kept_evidence, newest_kept_job
from cloudrl.jobs.history import earlier_steps, find_attempts, joined, read_steps
from cloudrl.jobs.redaction import MASK, is_secret_override, redact, redact_command, secret_values
from cloudrl.providers.model import Status
from cloudrl.providers.registry import locate, provider
from cloudrl.report import RunReport, Table
from cloudrl.report.log import LogReading
from cloudrl.report.series import not_finite
from cloudrl.report.tables import attempts_table, checkpoints_table, cost_table, kept_nodes_table, nodes_table
from cloudrl.saves.inventory import Checkpoint
from cloudrl.sdk.samples import NodeFiles, Samples, read_here
from cloudrl.spec.hydra import parse_overrides
from cloudrl.transport.ray_job import JobStatus, RayJob

_PIECE_BYTES = 4 << 20


class RunSource(Protocol):
    """One run."""

    def look(self) -> RunReport:
        """What there is of it now.

        Raises:
            CloudrlError: nothing can be had.
        """


class LogSource:
    """A driver's log on this machine, of any cluster."""

    def __init__(self, path: Path) -> None:
        self._path, self._reading = path, LogReading()
        self._samples = Samples(read_here)

    def look(self) -> RunReport:
        """See `RunSource`."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._reading.offset)
                while content := file.read(_PIECE_BYTES):
                    self._reading.add(content)
        except OSError as error:
            raise InputError(f"{self._path} cannot be read: {error.strerror or error}") from error
        config = _masked(self._reading.config or {})
        name = config.get("trainer.experiment_name") or self._path.stem.removeprefix("job-driver-")
        driver = LogTail("job-driver-.log", None, tuple(self._reading.last_lines))
        cause = None if self._reading.is_finished else find_cause(Evidence(logs=(driver,)))
        return _of_log(self._reading, self._samples, config, name=name, job=str(self._path), cause=cause)


class KeptSource:
    """A job of a cluster that is gone, from what its nodes have kept beside its checkpoints.

    Args:
        folder: of the checkpoints, on this machine.
        job: its submission id; None for the one of which something was kept last.
    """

    def __init__(self, folder: Path, job: str | None = None) -> None:
        self._folder, self._job = folder, job

    def look(self) -> RunReport:
        """See `RunSource`; nothing changes any more."""
        return self._report

    @cached_property
    def _report(self) -> RunReport:
        archive = Archive(FolderArchive(self._folder))
        id_ = self._job or newest_kept_job(archive)
        evidence = kept_evidence(archive, id_)
        job = _kept_job(archive, id_)
        attempts = list(_kept_attempts(archive, job))
        reading = LogReading(joined(read_steps(_kept_log(archive, each.submission_id)) for each in attempts))
        reading.read(_kept_log(archive, id_))
        config = _masked(reading.config or _overrides(job.entrypoint))
        name = job.metadata.get("job_name") or config.get("trainer.experiment_name") or id_
        has_failed = job.status in (JobStatus.FAILED, JobStatus.UNKNOWN) and not reading.is_finished
        made = _of_log(
            reading, Samples(self._read_sample), config, name=name, job=f"{id_} in {self._folder}",
            cause=find_cause(evidence) if has_failed else None,
        )  # fmt: skip
        tables = _Tables()
        tables.add("attempts", lambda: attempts_table([*attempts, job], None))
        tables.add("nodes", lambda: kept_nodes_table(evidence))
        checkpoint_dir = job.metadata.get("cloudrl_checkpoints") or config.get("trainer.default_local_dir", name)
        tables.add("checkpoints", lambda: checkpoints_table(self._checkpoints(Path(checkpoint_dir).name)))
        lost = ["Ray's records went with its head: how the job ended is not known"] if not evidence.state.job else []
        gone = "read from what the cluster has kept; its cost and the use of its nodes are not kept"
        return replace(
            made, status="" if job.status is JobStatus.UNKNOWN else str(job.status), tables=tuple(tables.made),
            notes=(*made.notes, gone, *lost, *tables.notes),
        )  # fmt: skip

    def _read_sample(self, folder: str, step: int) -> bytes | None:
        """From the same place below the folder of checkpoints, wherever that lies now."""
        return read_here(str(self._folder.joinpath(*Path(folder).parts[-2:])), step)

    def _checkpoints(self, run: str) -> list[Checkpoint]:
        return [each for each in LocalSource(self._folder).inventory().checkpoints if each.run == run]


class JobSource:
    """A job of a cluster that answers."""

    def __init__(self, job: JobHandle) -> None:
        self._job = job
        self._reading = LogReading(earlier_steps(job))
        self._samples = Samples(read_here if job.connection.nodes_are_here else NodeFiles(job))
        self._cause: Cause | None = None

    def look(self) -> RunReport:
        """See `RunSource`."""
        job = self._job.status()
        self._read_log(is_over=job.status.is_terminal)
        if job.status is JobStatus.FAILED and self._cause is None:
            self._cause = self._job.cause()
        config = _masked(self._reading.config or _overrides(job.entrypoint), job)
        made = _of_log(
            self._reading, self._samples, config, name=self._job.name, job=self._job.url, cause=self._cause
        )  # fmt: skip
        tables = _tables(self._job)
        return replace(
            made, status=str(job.status), total_steps=made.total_steps or self._job.total_steps,
            tables=tuple(tables.made), notes=(*made.notes, *tables.notes),
        )  # fmt: skip

    def _read_log(self, *, is_over: bool) -> None:
        with suppress(ConnectionFailed):  # what was read before is still worth a look
            for content in self._job.log_bytes(self._reading.offset):
                self._reading.add(content)
            if is_over:
                self._reading.add(b"", is_last=True)


def _of_log(
    reading: LogReading, samples: Samples, config: Mapping[str, str], *, name: str, job: str, cause: Cause | None
) -> RunReport:
    """What the log says."""
    steps = reading.steps
    found, notes = samples.of(config, steps)
    bad = [f"{key} was no finite number at step {step}" for key, step in not_finite(steps).items()]
    return RunReport(
        name=name, job=job, steps=steps, total_steps=reading.total_steps, config=config, samples=found, cause=cause,
        notes=(*notes, *bad),
    )  # fmt: skip


def _overrides(entrypoint: str) -> dict[str, str]:
    """Of a job whose log does not have its configuration yet."""
    try:
        words = shlex.split(redact_command(entrypoint))
    except ValueError:
        return {}
    return parse_overrides(dict(word.split("=", 1) for word in words if "=" in word and not word.startswith("-")))


def _masked(config: Mapping[str, str], job: RayJob | None = None) -> dict[str, str]:
    """Without the values of secrets."""
    known = secret_values(job.runtime_env.get("env_vars") or {}) if job is not None else ()
    shown = {
        key: MASK if is_secret_override(key) and value not in ("", "None") else value for key, value in config.items()
    }
    return {key: str(redact(value, known)) for key, value in shown.items()}


class _Tables:
    """Tables with rows in them, and a note for each that cannot be had."""

    def __init__(self) -> None:
        self.made, self.notes = list[Table](), list[str]()

    def add(self, what: str, make: Callable[[], Table]) -> None:
        try:
            table = make()
        except CloudrlError as failure:
            self.notes.append(f"{what} cannot be had now: {failure.message}")
        else:
            self.made += [table] if table.rows else []


def _tables(job: JobHandle) -> _Tables:
    """What is known around a job of a cluster that answers."""
    tables, status = _Tables(), list[Status]()

    def cost() -> Table:
        ref = locate(job.connection.name)
        status.append(provider(ref.provider).status(ref.name))
        return cost_table(status[0])

    if job.connection.cluster_id is not None:
        tables.add("cost", cost)
    tables.add(
        "attempts", lambda: attempts_table([each.status() for each in find_attempts(job)], next(iter(status), None))
    )
    if (agent := job.connection.agent()) is not None:
        tables.add("nodes", lambda: nodes_table(agent.status().nodes))
        tables.add("checkpoints", lambda: checkpoints_table(_checkpoints(job)))
    return tables


def _checkpoints(job: JobHandle) -> list[Checkpoint]:
    """Those in the job's folder."""
    folder = (job.checkpoint_dir or "").rstrip("/")
    return [
        each
        for each in ClusterSource(job.connection).inventory().checkpoints
        if any(f"{place.folder.rstrip('/')}/{each.run}" == folder for place in each.locations)
    ]


def _kept_log(archive: Archive, job: str) -> Iterator[str]:
    log = archive.driver_log(job)
    return archive.lines(log) if log is not None else iter(())


def _kept_job(archive: Archive, job: str) -> RayJob:
    """What Ray said of it when it had ended; of unknown status where that is not kept."""
    state = archive.state(job)
    try:
        return replace(RayJob.read(state.job if state is not None else {}), submission_id=job)
    except (TypeError, AttributeError):  # no record of Ray's
        return RayJob(job, JobStatus.UNKNOWN)


def _kept_attempts(archive: Archive, job: RayJob) -> Iterator[RayJob]:
    """The jobs that have trained the run before this one, the first one first."""
    keys = ("job_name", "cloudrl_checkpoints")
    wanted = tuple(job.metadata.get(key) for key in keys)
    for each in archive.jobs:
        if each == job.submission_id or None in wanted:
            return
        found = _kept_job(archive, each)
        if tuple(found.metadata.get(key) for key in keys) == wanted:
            yield found
