"""Where a report comes from: a cluster that answers, what is kept of one that is gone, or a log on this machine."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

from cloudrl.checkpoints.sources import ClusterSource, LocalSource
from cloudrl.errors import CloudrlError, ConnectionFailed, InputError
from cloudrl.jobs import JobHandle
from cloudrl.jobs.history import earlier_steps, find_attempts, joined
from cloudrl.jobs.pools import node_pools
from cloudrl.jobs.redaction import redact, redact_command, secret_values
from cloudrl.logs.archive import Archive, FolderArchive
from cloudrl.logs.causes import Cause, Evidence, LogTail
from cloudrl.logs.causes.finder import find_cause
from cloudrl.logs.causes.kept import kept_evidence, newest_kept_job
from cloudrl.logs.sent_files import by_own_names
from cloudrl.protocol.report import NodeReport
from cloudrl.protocol.secret_names import MASK, is_secret_override
from cloudrl.providers.model import Status
from cloudrl.providers.registry import locate, provider
from cloudrl.report import RunReport, Table
from cloudrl.report.log import LogReading
from cloudrl.report.tables import (
    about_run,
    attempts_table,
    balance_table,
    checkpoints_table,
    cost_table,
    kept_nodes_table,
    nodes_table,
)
from cloudrl.report.usage import NodeUsage
from cloudrl.saves.inventory import Checkpoint
from cloudrl.sdk.find import Kept
from cloudrl.sdk.kept_jobs import kept_attempts, kept_job, lost_attempts, runs_of
from cloudrl.sdk.samples import NodeFiles, Samples, read_here
from cloudrl.sdk.usage_sources import KeptUsage, asked_usage, span_of
from cloudrl.transport.ray_job import JobStatus, RayJob
from cloudrl.verl.balance import balance, pools_of
from cloudrl.verl.command import overrides_of
from cloudrl.verl.keys import EXPERIMENT, TRAINER_MODE
from cloudrl.verl.metrics import Step, not_finite, without_ansi

_PIECE_BYTES = 4 << 20
_LOG_LINES = 200


class RunSource(Protocol):
    """One run."""

    def look(self) -> RunReport:
        """What there is of it now.

        Raises:
            CloudrlError: nothing can be had.
        """


class LogSource:
    """A driver's log on this machine, of any cluster.

    Args:
        path: of the log.
        once: whether it is read only once; a line without an end is then read as it is, else once it is whole.
    """

    def __init__(self, path: Path, *, once: bool) -> None:
        self._path, self._once, self._reading = path, once, LogReading()
        self._samples = Samples(read_here)

    def look(self) -> RunReport:
        """See `RunSource`."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._reading.offset)
                while content := file.read(_PIECE_BYTES):
                    self._reading.add(content)
            if self._once:
                self._reading.add(b"", is_last=True)
        except OSError as error:
            raise InputError(f"{self._path} cannot be read: {error.strerror or error}") from error
        config = _masked(self._reading.config or {})
        name = config.get(EXPERIMENT) or self._path.stem.removeprefix("job-driver-")
        driver = LogTail("job-driver-.log", None, tuple(self._reading.last_lines))
        cause = None if self._reading.is_finished else find_cause(Evidence(logs=(driver,)))
        made = _of_log(self._reading, self._samples, config, name=name, job=str(self._path), cause=cause)
        pace = _balance_table(made, self._reading, {}, ())
        alone = ["the first cause is that of the driver's log alone"] if cause is not None else []
        empty = ["no step of verl's in this log"] if not made.steps else []
        tables = (pace,) if pace.rows else ()
        return replace(made, tables=tables, notes=(*empty, *made.notes, *alone))


class KeptSource:
    """A job of a cluster that is gone, from what its nodes have kept beside its checkpoints.

    Args:
        kept: which job of which cluster.
        cluster: its name, if the provider is to say what it has cost.
    """

    def __init__(self, kept: Kept, cluster: str | None = None) -> None:
        self._kept, self._folder, self._cluster = kept, kept.folder, cluster

    def look(self) -> RunReport:
        """See `RunSource`; nothing changes any more."""
        return self._report

    @cached_property
    def _report(self) -> RunReport:
        archive = Archive(FolderArchive(self._folder))
        id_ = self._kept.job_id or newest_kept_job(archive, self._kept.cluster, self._kept.run)
        evidence, kept = kept_evidence(archive, id_), kept_job(archive, id_)
        job, reading = kept.job, kept.reading
        attempts = list(kept_attempts(archive, kept.run, until=id_))
        config = _masked(reading.config or overrides_of(redact_command(job.entrypoint)))
        name, checkpoint_dir = kept.run
        name = name or id_
        has_failed = job.status in (JobStatus.FAILED, JobStatus.UNKNOWN) and not reading.is_finished
        made = _of_log(
            reading, Samples(self._read_sample), config, name=name, job=f"{id_} in {self._folder}",
            earlier=[attempt.reading.steps for attempt in attempts], cause=find_cause(evidence) if has_failed else None,
        )  # fmt: skip
        jobs = [*(attempt.job for attempt in attempts), job]
        usage = KeptUsage(archive, runs_of(archive, [attempt.submission_id for attempt in jobs]))
        nodes, tables = usage.nodes(span_of(jobs)), _Tables()
        pools = pools_of(evidence.state.actors).items()
        ranks = {rank: pool for node, pool in pools if (rank := evidence.rank_of(node)) is not None}
        tables.add("the pools", lambda: _balance_table(made, reading, ranks, nodes))
        tables.add("cost", lambda: self._cost(usage))
        tables.add("attempts", lambda: attempts_table(jobs, None))
        tables.add("nodes", lambda: kept_nodes_table(evidence))
        tables.add("checkpoints", lambda: checkpoints_table(self._checkpoints(Path(checkpoint_dir or name).name)))
        lost = ["Ray's records went with its head: how the job ended is not known"] if not evidence.state.job else []
        missing = [
            *(
                ["its cost, as its agents knew no price"]
                if not any(table.title == "Cost" for table in tables.made)
                else []
            ),
            *(["the use of its nodes"] if not nodes else []),
        ]
        gone = "read from what the cluster has kept" + f"; not kept: {', '.join(missing)}" * bool(missing)
        return replace(
            made, status="" if job.status is JobStatus.UNKNOWN else str(job.status), tables=tuple(tables.made),
            about=about_run(job), group=job.metadata.get("cloudrl_group", ""),
            usage=nodes, notes=(*made.notes, gone, *lost, *tables.notes),
        )  # fmt: skip

    def _cost(self, usage: KeptUsage) -> Table:
        """As the provider says, if it knows the cluster; else as its agents have counted."""
        if self._cluster is not None:
            ref = locate(self._cluster)
            costs = cost_table(provider(ref.provider).status(ref.name))
            if costs.rows:
                return costs
        return usage.cost_table(self._folder)

    def _read_sample(self, folder: str, step: int) -> bytes | None:
        """From the same place below the folder of checkpoints, wherever that is now."""
        return read_here(str(self._folder.joinpath(*Path(folder).parts[-2:])), step)

    def _checkpoints(self, run: str) -> list[Checkpoint]:
        return [checkpoint for checkpoint in LocalSource(self._folder).inventory().checkpoints if checkpoint.run == run]


class JobSource:
    """A job of a cluster that answers."""

    def __init__(self, job: JobHandle) -> None:
        self._job, self._reading = job, LogReading()
        self._lost = lost_attempts(job)
        self._earlier = [*(attempt.reading.steps for attempt in self._lost), earlier_steps(job)]
        self._samples = Samples(read_here if job.connection.nodes_are_here else NodeFiles(job))
        self._cause: Cause | None = None

    def look(self) -> RunReport:
        """See `RunSource`."""
        job = self._job.status()
        self._read_log(is_over=job.status.is_terminal)
        if job.status is JobStatus.FAILED and self._cause is None:
            self._cause = self._job.cause()
        config = _masked(self._reading.config or overrides_of(redact_command(job.entrypoint)), job)
        made = _of_log(
            self._reading, self._samples, config, name=self._job.name, job=self._job.url, cause=self._cause,
            earlier=self._earlier,
        )  # fmt: skip
        nodes, usage = self._nodes(), self._usage()
        tables = _tables(self._job, [attempt.job for attempt in self._lost])
        tables.add(
            "the pools",
            lambda: _balance_table(made, self._reading, node_pools(self._job.connection, job, nodes), usage),
        )
        return replace(
            made, status=str(job.status), total_steps=made.total_steps or self._job.total_steps,
            about=about_run(job, nodes), group=job.metadata.get("cloudrl_group", ""),
            log=tuple(str(redact(line, secret_values(job.variables))) for line in made.log),
            tables=tuple(tables.made), usage=usage, notes=(*made.notes, *tables.notes),
        )  # fmt: skip

    def _nodes(self) -> tuple[NodeReport, ...]:
        with suppress(CloudrlError):
            agent = self._job.connection.agent()
            return agent.status().nodes if agent is not None else ()
        return ()

    def _usage(self) -> tuple[NodeUsage, ...]:
        """Of the time in which the run was trained, as far as this cluster's agents remember it."""
        with suppress(ConnectionFailed):
            agent = self._job.connection.agent()
            if agent is not None:
                return asked_usage(agent, span_of(attempt.status() for attempt in find_attempts(self._job)))
        return ()

    def _read_log(self, *, is_over: bool) -> None:
        with suppress(ConnectionFailed):  # what was read before is still worth a look
            for content in self._job.log_bytes(self._reading.offset):
                self._reading.add(content)
            if is_over:
                self._reading.add(b"", is_last=True)


def _of_log(
    reading: LogReading,
    samples: Samples,
    config: Mapping[str, str],
    *,
    name: str,
    job: str,
    cause: Cause | None,
    earlier: Sequence[Sequence[Step]] = (),
) -> RunReport:
    """What the log says, and the steps of earlier attempts."""
    steps = joined([*earlier, reading.steps])
    chosen = samples.of(config, steps)
    bad = [f"{key} was no finite number at step {step}" for key, step in not_finite(steps).items()]
    return RunReport(
        name=name, job=job, steps=steps, total_steps=reading.total_steps, config=config, cause=cause,
        samples=chosen.samples, answers=chosen.answers, answer_steps=chosen.steps,
        log=tuple(by_own_names(without_ansi(line)) for line in list(reading.last_lines)[-_LOG_LINES:]),
        notes=(*chosen.notes, *bad),
    )  # fmt: skip


def _balance_table(made: RunReport, reading: LogReading, pools: Mapping[int, str], nodes: Sequence[NodeUsage]) -> Table:
    usage = {node.rank: node.samples for node in nodes}
    return balance_table(balance(made.config.get(TRAINER_MODE, ""), made.steps, reading.prompts, pools, usage))


def _masked(config: Mapping[str, str], job: RayJob | None = None) -> dict[str, str]:
    """Without the values of secrets."""
    secrets = secret_values(job.variables) if job is not None else ()
    shown = {
        key: MASK if is_secret_override(key) and value not in ("", "None") else value for key, value in config.items()
    }
    return {key: str(redact(value, secrets)) for key, value in shown.items()}


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


def _tables(job: JobHandle, lost: Sequence[RayJob]) -> _Tables:
    """What is known around a job of a cluster that answers, with the attempts that its Ray does not know any more."""
    tables, status = _Tables(), list[Status]()

    def cost() -> Table:
        ref = locate(job.connection.name)
        status.append(provider(ref.provider).status(ref.name))
        return cost_table(status[0])

    if job.connection.cluster_id is not None:
        tables.add("cost", cost)
    tables.add(
        "attempts",
        lambda: attempts_table(
            [*lost, *(attempt.status() for attempt in find_attempts(job))], next(iter(status), None)
        ),
    )
    if (agent := job.connection.agent()) is not None:
        tables.add("nodes", lambda: nodes_table(agent.status().nodes))
        tables.add("checkpoints", lambda: checkpoints_table(_checkpoints(job)))
    return tables


def _checkpoints(job: JobHandle) -> list[Checkpoint]:
    """Those in the job's folder."""
    folder = (job.checkpoint_dir or "").rstrip("/")
    return [
        checkpoint
        for checkpoint in ClusterSource(job.connection).inventory().checkpoints
        if any(f"{place.folder.rstrip('/')}/{checkpoint.run}" == folder for place in checkpoint.locations)
    ]
