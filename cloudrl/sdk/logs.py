"""The logs of a cluster: of one that is up through its agents, of one that is gone from where they are kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from cloudrl.errors import CloudrlError, InputError
from cloudrl.logs.archive import Archive, FolderArchive
from cloudrl.logs.cluster_archive import ask_cluster
from cloudrl.logs.view import LogLine, log_lines, moment
from cloudrl.protocol.ranks import spans
from cloudrl.sdk.callbacks import Notice, OnProgress, silent
from cloudrl.sdk.choose import KEPT_FOLDER_HINT, Purpose, choose_cluster
from cloudrl.sdk.find import find_here
from cloudrl.sdk.running import attach


def logs(
    name: str | None = None,
    folder: Path | None = None,
    *,
    run: str | None = None,
    node: int | None = None,
    log: str = "*",
    grep: str | None = None,
    around: str | None = None,
    on_progress: OnProgress = silent,
) -> Iterator[LogLine]:
    """The lines of all logs of one run, in the order of their times.

    Args:
        name: of the cluster; see `cloudrl.sdk.choose` for None. One on this machine may be down.
        folder: of checkpoints, where a cluster that is gone has kept them.
        run: its id, where there is more than one; the newest for None.
        node: the rank of a node, all of them for None.
        log: a pattern for the names of logs.
        grep: a regular expression that lines contain.
        around: a time; lines of half a minute before and after it.
        on_progress: receives what is missing.

    Raises:
        InputError: the logs do not exist, or an argument is not valid.
        ConnectionFailed: no answer, and nothing is kept here.
    """
    try:
        pattern = re.compile(grep) if grep is not None else None
    except re.error as error:
        raise InputError(f"--grep {grep!r} is not a regular expression: {error}") from None
    archive, run = _archive(name, folder, run, on_progress)
    files = archive.of(run, rank=node)
    if not files:
        ranks = spans(file.rank for file in archive.of(run))
        raise InputError(f"no logs of node {node} are kept; there are those of: {ranks}")
    at = moment(around, max(file.modified_at for file in files)) if around is not None else None
    return log_lines(archive, files, name=log, pattern=pattern, around=at)


def _archive(
    name: str | None, folder: Path | None, run: str | None, on_progress: OnProgress
) -> tuple[Archive, str | None]:
    """The place, and the id of the run there."""
    if folder is not None:
        return Archive(FolderArchive(folder)), run
    if name is None:
        name = choose_cluster(Purpose.READ_KEPT, otherwise=KEPT_FOLDER_HINT, on_progress=on_progress)
    try:
        connection = attach(name).connection
        agent = connection.agent()
        if agent is None:
            raise InputError(f"{connection.name} is a plain Ray cluster: no agent keeps its logs")
        source = ask_cluster(connection.name, agent, [node.rank for node in agent.status().nodes], run)
    except CloudrlError:
        status = find_here(name)
        if status is None:
            raise
        # other clusters may keep theirs in the same folder
        return Archive(FolderArchive(Path(status.facts.checkpoint_dir))), run or status.facts.id or None
    for note in source.notes:
        on_progress(Notice(note))
    return Archive(source), source.run
