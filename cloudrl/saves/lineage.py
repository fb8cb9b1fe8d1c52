"""Which files of a durable job's steps belong to attempts that it has left behind. Pure.

A machine that was given up may come back with steps that the job has since trained again. Their names are the same, so
shards of two attempts could be taken for one step. A step of an attempt counts only up to the step from which every
later attempt has started.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cloudrl.protocol.durable_jobs import Attempt, DurableJob
from cloudrl.saves.inventory import CLOCKS_S, Checkpoint, Inventory
from cloudrl.saves.names import SHARD, find_data
from cloudrl.saves.places import FileCopy

_Files = Mapping[str, Sequence[FileCopy]]


def without_abandoned(inventory: Inventory, job: DurableJob) -> Inventory:
    """The same without what attempts of a job have saved that it has left behind; other runs are unchanged.

    Args:
        inventory: of the cluster.
        job: with its attempts.
    """
    mine: dict[int, list[Checkpoint]] = defaultdict(list)
    for checkpoint in inventory.checkpoints:
        if checkpoint.run == job.run:
            mine[checkpoint.step].append(checkpoint)
    since = {step: _saved_since(step, roles, job.attempts) for step, roles in mine.items()}
    checkpoints = []
    for checkpoint in inventory.checkpoints:
        if checkpoint.run != job.run or not since[checkpoint.step]:
            checkpoints.append(checkpoint)
        elif (newer := _without_older(checkpoint, since[checkpoint.step])) is not None:
            checkpoints.append(newer)
    return replace(inventory, checkpoints=tuple(checkpoints))


def _saved_since(step: int, roles: Sequence[Checkpoint], attempts: Sequence[Attempt]) -> float:
    """Files of this step with an earlier date do not count, Unix seconds; 0.0 if all do.

    A clock that was set back gives the files of the newest attempt earlier dates, too. Then its trainer has told of the
    step, or all files are as old as each other; an attempt that has told of no such step has not saved it.
    """
    later = [attempt for attempt in attempts if attempt.from_step < step]
    if len(attempts) < 2 or not later:
        return 0.0
    newest = max((copy.modified_at for copy in _copies(roles)), default=0.0)
    since = later[-1].started_at - CLOCKS_S
    return 0.0 if newest < since and later[-1].saved_step >= step else since


def _copies(roles: Sequence[Checkpoint]) -> Iterator[FileCopy]:
    for role in roles:
        for copies in (*role.files.values(), *role.step_files.values()):
            yield from copies


def _without_older(checkpoint: Checkpoint, since: float) -> Checkpoint | None:
    """None if nothing of it is left."""
    files, step_files = _newer(checkpoint.files, since), _newer(checkpoint.step_files, since)
    if not files:
        return None
    chosen = {name: copies[0] for name, copies in files.items()}
    stale = {
        int(match[3])
        for name, copies in checkpoint.files.items()
        if (match := SHARD.fullmatch(name)) and chosen.get(name) is not copies[0]
    }
    records = {rank: record for rank, record in checkpoint.records.items() if rank not in stale}
    has_lost_data = find_data(checkpoint.step_files) is not None and find_data(step_files) is None
    return replace(
        checkpoint, files=files, step_files=step_files, records=records,
        finished=checkpoint.finished and not has_lost_data,
    )  # fmt: skip


def _newer(files: _Files, since: float) -> dict[str, tuple[FileCopy, ...]]:
    newer = {name: tuple(copy for copy in copies if copy.modified_at >= since) for name, copies in files.items()}
    return {name: copies for name, copies in newer.items() if copies}
