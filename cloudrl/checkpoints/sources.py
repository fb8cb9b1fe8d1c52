"""Where checkpoints are: in a folder of this machine, or on the nodes of a cluster."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cloudrl.checkpoints.remote import RangeClient, RemoteShard
from cloudrl.errors import CheckpointError, ConnectionFailed, InputError
from cloudrl.protocol.backoff import Backoff
from cloudrl.protocol.durable_jobs import DurableJob, newest
from cloudrl.protocol.job_calls import list_jobs, mirrored_steps, read_journal
from cloudrl.protocol.mirrors import MirroredStep
from cloudrl.protocol.side_by_side import side_by_side
from cloudrl.saves.aggregate import local_inventory
from cloudrl.saves.archive import FOLDER
from cloudrl.saves.below import Refused
from cloudrl.saves.inventory import Inventory
from cloudrl.saves.keeping import mark_kept, unite_runs
from cloudrl.saves.names import STEP, of_run
from cloudrl.saves.places import FileCopy, Location
from cloudrl.saves.removal import purge, remove_step, runs_with_rest
from cloudrl.saves.survey import cluster_inventory
from cloudrl.shards.source import LocalShard, ShardSource
from cloudrl.units import duration_text, size_text

_BELOW_A_RUN = re.compile(rf"{STEP.pattern}|actor|critic")
_DEPTH = 4
"""How far above the folder of a step that of all runs may be."""

if TYPE_CHECKING:  # a merge of files here needs neither pydantic nor a connection
    from cloudrl.transport import AgentClient, Connection


@dataclass(frozen=True)
class LocalSource:
    """A folder of this machine: one with runs, a run, or one step."""

    folder: Path

    @property
    def name(self) -> str:
        """How a user calls it."""
        return str(self.folder)

    @property
    def place(self) -> str:
        """For messages: `folder ./checkpoints`, `cluster lab`."""
        return f"folder {self.folder}"

    @property
    def options(self) -> str:
        """How a command line names it, quoted."""
        return f"--dir {shlex.quote(str(self.folder))}"

    def inventory(self) -> Inventory:
        """All that there is.

        Raises:
            InputError: There is no such folder.
        """
        return local_inventory(self.folder)

    def durable_jobs(self) -> list[DurableJob]:
        """None: a folder does not tell of jobs."""
        return []

    def commands(self, run: str) -> list[str]:
        """Of the jobs that trained a run, without secrets, as far as the logs that agents kept beside it tell."""
        from cloudrl.jobs.redaction import redact_command
        from cloudrl.logs.archive import Archive, FolderArchive  # not for a merge that does not ask
        from cloudrl.transport.ray_job import RayJob

        folder = self.folder.resolve()
        if run == ".":
            run = next((path.name for path in (folder, *folder.parents) if not _BELOW_A_RUN.fullmatch(path.name)), run)
        root = next((path for path in (folder, *folder.parents[:_DEPTH]) if (path / FOLDER).is_dir()), None)
        archive = Archive(FolderArchive(root)) if root else None
        sources = []
        for state in map(archive.state, archive.jobs) if archive else ():
            with suppress(AttributeError, TypeError, ValueError):  # others may have written it
                if state is not None and (job := RayJob.read(state.job)).trained(run):
                    sources.append(redact_command(job.entrypoint))
        return sources

    def open(self, file: FileCopy) -> ShardSource:
        """The bytes of a file that the inventory names; nothing is read yet."""
        return LocalShard(Path(file.location.folder) / file.path, label=file.label)

    def remove(self, location: Location, path: str) -> None:
        """Remove one step, `RUN/global_step_10` below the location's folder.

        Raises:
            CheckpointError: It is not there any more.
        """
        try:
            remove_step(Path(location.folder), path)
        except OSError as error:
            where = error.filename if isinstance(error.filename, str) and "/" in error.filename else None
            raise _cannot_remove(f"{location.folder}/{path}", error.strerror or str(error), where) from error
        except Refused as error:
            raise CheckpointError(f"{location.folder}/{path} cannot be removed: {error}") from error

    def remove_rest(self) -> None:
        """Remove what an earlier removal has left that was ended or failed: nothing lists it any more.

        Raises:
            CheckpointError: It cannot be removed.
        """
        root = next(
            (path.parent for path in (self.folder, *self.folder.parents) if STEP.fullmatch(path.name)), self.folder
        )
        for run in runs_with_rest(root):
            try:
                purge(root, run)
            except (OSError, Refused) as error:
                where = getattr(error, "filename", None)
                raise _cannot_remove(
                    f"what is left of a pruned step in {root / run}", str(getattr(error, "strerror", error)), where
                ) from error


def _cannot_remove(what: str, why: str, where: str | None) -> CheckpointError:
    return CheckpointError(
        f"{what} cannot be removed: {why}{f': {where}' if where else ''}",
        hint="Type the same command as the owner of these files, or with sudo",
    )


@dataclass(frozen=True)
class ClusterSource:
    """The nodes of a running cluster, asked through the agent of its head.

    Attributes:
        connection: To it.
        backoff: For a link that is cut while bytes are read.
        on_break: Called with a sentence for each failure that is going to be tried again.
    """

    connection: Connection
    backoff: Backoff | None = None
    on_break: Callable[[str], None] = lambda _sentence: None

    @property
    def name(self) -> str:
        """See `LocalSource`."""
        return self.connection.name

    @property
    def place(self) -> str:
        """See `LocalSource`."""
        return f"cluster {self.connection.name}"

    @property
    def options(self) -> str:
        """See `LocalSource`."""
        return f"--cluster {shlex.quote(self.connection.name)}"

    def inventory(self) -> Inventory:
        """All that there is; a note names each node that does not answer.

        Raises:
            InputError: The cluster has no agents.
            ConnectionFailed: The cluster does not answer.
            CheckpointError: A node gives a name that is not a path below a folder.
        """
        inventory = cluster_inventory(self._agent.status().nodes, self._agent.inventory)
        for job in self.durable_jobs():
            inventory = mark_kept(inventory, job)
        return replace(inventory, notes=(*inventory.notes, *_mirror_notes(self._agent)))

    def durable_jobs(self) -> list[DurableJob]:
        """The newest of each run, also of earlier clusters, with all that the run keeps for good.

        Raises:
            ConnectionFailed: The cluster does not answer.
        """
        return unite_runs(_recorded_jobs(self._agent, [node.rank for node in self._agent.status().nodes]))

    def commands(self, run: str) -> list[str]:
        """See `LocalSource`; without secrets, and nothing if Ray does not answer."""
        from cloudrl.jobs.redaction import redact_command  # not for a folder

        try:
            return [redact_command(job.entrypoint) for job in self.connection.ray().list_jobs() if job.trained(run)]
        except ConnectionFailed:
            return []

    def open(self, file: FileCopy) -> ShardSource:
        """See `LocalSource`."""
        return RemoteShard(self._client, file)

    def remove(self, location: Location, path: str) -> None:
        """See `LocalSource`.

        Raises:
            CheckpointError: It is not there any more.
            ConnectionFailed: The node does not answer.
        """
        try:
            self._agent.remove_step(location.ranks[0], location.root, path)
        except InputError as error:
            raise CheckpointError(f"{location.label}: {path} cannot be removed: {error.message}") from error

    def remove_rest(self) -> None:
        """See `LocalSource`: the agents do it when they start."""

    @cached_property
    def _agent(self) -> AgentClient:
        agent = self.connection.agent()
        if agent is None:
            raise InputError(
                f"{self.connection.name} is a plain Ray cluster: no agent there knows of checkpoints",
                hint="Copy them into one folder, and name that: cloudrl checkpoints list --dir ./folder",
            )
        return agent

    @cached_property
    def _client(self) -> RangeClient:
        return RangeClient(self._agent, backoff=self.backoff, on_break=self.on_break)


CheckpointSource = LocalSource | ClusterSource
"""One collection of checkpoints."""


def _recorded_jobs(agent: AgentClient, ranks: Sequence[int]) -> list[DurableJob]:
    """The durable jobs of this cluster, and of earlier ones on its volumes."""

    def ask(rank: int | None) -> Sequence[DurableJob]:
        with suppress(ConnectionFailed, InputError):  # a silent node; agents of an older release
            return list_jobs(agent) if rank is None else read_journal(agent, rank)
        return ()

    jobs: dict[str, DurableJob] = {}
    for job in itertools.chain.from_iterable(side_by_side(ask, [None, *ranks])):
        jobs[job.job_id] = newest(jobs.get(job.job_id, job), job)
    return list(jobs.values())


def _mirror_notes(agent: AgentClient) -> Iterator[str]:
    """Which steps the mirrors of the cluster's jobs have."""
    by_run: dict[tuple[str, str], list[MirroredStep]] = {}
    with suppress(ConnectionFailed):  # the nodes have answered, and that is what was asked for
        for step in mirrored_steps(agent):
            by_run.setdefault((step.run, step.mirror), []).append(step)
    for (run, mirror), steps in sorted(by_run.items()):
        last = steps[-1]
        numbers = ", ".join(str(step.step) for step in steps)
        took = f"{size_text(last.size_bytes)} in {duration_text(last.seconds)}"
        yield f"{of_run(run)}safe in {mirror}: step{'s' * (len(steps) > 1)} {numbers} (the last took {took})"
