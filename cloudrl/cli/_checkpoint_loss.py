"""Checkpoints on disks that are about to be destroyed: listed, before the question whether to go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudrl.cli import _output
from cloudrl.errors import CloudrlError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudrl.providers.model import CheckpointRetention, Status
    from cloudrl.transport import Connection

_SHOWN = 20


def saved(connection: Connection) -> list[str]:
    """The checkpoints of a cluster, one line each: run, step, role, size, where. Asks every node.

    Raises:
        CloudrlError: the cluster does not answer.
    """
    from cloudrl.checkpoints.sources import ClusterSource
    from cloudrl.cli._progress import gigabytes
    from cloudrl.saves.inventory import spans

    found = ClusterSource(connection).inventory()
    lines = []
    for each in found.checkpoints:
        where = "; ".join(f"{spans(held)} on {place.short}" for place, held in each.locations.items())
        state = "" if each.complete else f", incomplete: no {', '.join(each.missing)}"
        lines.append(f"{each.name}, {gigabytes(each.size_bytes)}, ranks {where}{state}")
    return [*lines, *found.notes]


def look(status: Status, connection: Connection | None) -> tuple[CheckpointRetention | None, list[str]]:
    """What becomes of a cluster's checkpoints, and which there are, as far as it matters for whoever ends it.

    Nothing where none was saved yet; those that stay are not listed.
    """
    if connection is None and not may_have_run_jobs(status):
        return None, []
    keeping = status.retention
    if keeping is None or not keeping.destroyed:
        return keeping, []
    if connection is None:
        return keeping, ["they cannot be listed: the cluster cannot be reached"]
    try:
        lines = saved(connection)
    except CloudrlError as error:
        lines = [f"they cannot be listed: {error.message}"]
    return (keeping, lines) if lines else (None, [])


def may_have_run_jobs(status: Status) -> bool:
    """Whether jobs may have run on a cluster that does not answer, and is not over; "running" is all dstack sees."""
    if status.is_over:
        return False
    return (
        status.phase in ("ready", "running") or status.ready_at is not None or bool(status.previous_attempts)
    )


def show(name: str, keeping: CheckpointRetention, lines: Sequence[str]) -> None:
    """What is going to be lost with a cluster, and how to keep it."""
    _output.note(f"These checkpoints lie nowhere else than {keeping.location}:")
    listed(lines)
    _output.hint(f"Bring one home first: cloudrl checkpoints merge {name} --to ./model")


def listed(lines: Sequence[str]) -> None:
    """The latest of them, one a line."""
    if len(lines) > _SHOWN:
        _output.note(f"  ({len(lines) - _SHOWN} more)")
    for line in lines[-_SHOWN:]:
        _output.note(f"  {line}")
