"""Evidence of a job from the archive of a run's logs, for a cluster that is gone."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from cloudrl.errors import InputError
from cloudrl.logs.archive import Archive, LogFile
from cloudrl.logs.causes.evidence import LOST, AgentLog, Evidence, LogTail, last_lines
from cloudrl.logs.causes.gather import ranks_of
from cloudrl.protocol.oom_kills import from_line
from cloudrl.protocol.ray_state import KINDS, RayState
from cloudrl.saves.archive import driver_log, first_name, state_file

_WORKER, _AGENT = "logs/worker-", "agent/agent.log"


def kept_evidence(archive: Archive, job: str, *, cluster_is_over: bool = False) -> Evidence:
    """What is kept of a job.

    Args:
        archive: of its cluster.
        job: its submission id.
        cluster_is_over: whether it is known that the cluster does not run any more.

    Raises:
        InputError: nothing is.
    """
    files = [file for file in archive.files if first_name(file.path) in _files_of(job)]
    if not files:
        raise InputError(f"nothing of job {job!r} is kept in {archive.source.name}")
    newest = max(files, key=lambda file: file.modified_at)
    session, driver = archive.of(newest.run, session=newest.session), archive.driver_log(job)
    state = _state(archive, job)
    wanted = [file for file in session if file == driver or _is_wanted(file, state)]
    offsets = {rank: archive.utc_offset_s(newest.session, rank) for rank in {file.rank for file in wanted}}
    logs = tuple(_tail(archive, file, offsets[file.rank]) for file in wanted)
    ranks = {**ranks_of((state or LOST).nodes, {}), **dict(_ranks(state or LOST, session))}
    agents = tuple(AgentLog(file.rank, last_lines(archive.lines(file))) for file in session if file.path == _AGENT)
    kills = {agent.rank: kills for agent in agents for line in agent.lines if (kills := from_line(line)) is not None}
    return Evidence(state or LOST, ranks, logs, agents, cluster_is_over, kills)


def _state(archive: Archive, job: str) -> RayState | None:
    """As it was kept, without malformed rows."""
    state = archive.state(job)
    if state is None:
        return None
    rows: dict[str, Any] = {kind: tuple(row for row in getattr(state, kind) if isinstance(row, dict)) for kind in KINDS}
    return replace(state, **rows)


def newest_kept_job(archive: Archive, cluster: str | None = None, run: str | None = None) -> str:
    """The submission id of the job of which something was kept last.

    Args:
        archive: which clusters may share.
        cluster: the name of the one that is meant; None for any of them.
        run: the id of its last start, where its nodes have not said their cluster's name.

    Raises:
        InputError: nothing is kept of any.
    """
    jobs = kept_ids(archive, cluster, run)
    if not jobs:
        whose = f" of cluster {cluster!r}" if cluster is not None else ""
        raise InputError(f"no log of a job{whose} is kept in {archive.source.name}")
    return jobs[-1]


def kept_ids(archive: Archive, cluster: str | None = None, run: str | None = None) -> Sequence[str]:
    """The submission ids of all jobs of which something is kept, the oldest first; see `newest_kept_job`."""
    return archive.jobs if cluster is None else archive.jobs_of({*archive.runs_of(cluster), run or ""})


def _files_of(job: str) -> tuple[str, str]:
    return driver_log(job), state_file(job)


def _is_wanted(file: LogFile, state: RayState | None) -> bool:
    """Logs of the job's processes; of all workers of that session where the state is lost."""
    if not file.path.startswith(_WORKER):
        return False
    pids = {row.get(key) for row in (*state.tasks, *state.actors) for key in ("worker_pid", "pid")} if state else ()
    return state is None or _pid(file) in pids


def _pid(file: LogFile) -> int | None:
    return LogTail(file.path.rpartition("/")[2], file.rank, ()).pid


def _tail(archive: Archive, file: LogFile, utc_offset_s: float) -> LogTail:
    lines = last_lines(archive.lines(file))
    return LogTail(file.path.rpartition("/")[2], file.rank, lines, file.modified_at * 1000, utc_offset_s)


def _ranks(state: RayState, files: tuple[LogFile, ...]) -> Iterator[tuple[str, int]]:
    """Ids of nodes and their ranks: a worker's log is stored below the rank of its node."""
    by_worker = {file.path.removeprefix(_WORKER).partition("-")[0]: file.rank for file in files}
    for row in (*state.tasks, *state.workers):
        if row.get("node_id") and (rank := by_worker.get(row.get("worker_id"))) is not None:
            yield row["node_id"], rank
