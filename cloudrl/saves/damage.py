"""What a user should know of steps of a run that are there and not whole. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cloudrl.saves.inventory import Checkpoint
from cloudrl.saves.names import of_run
from cloudrl.saves.wholeness import UNREADABLE, describe

_MOST_NOTES = 3


def damage_notes(checkpoints: Sequence[Checkpoint]) -> Iterator[str]:
    """Which files are damaged, and what to do, the newest steps first.

    Args:
        checkpoints: All of one run.
    """
    damaged = [checkpoint for checkpoint in reversed(checkpoints) if checkpoint.damage_phrases]
    whole = _newest_whole(checkpoints)
    for note in damaged[:_MOST_NOTES]:
        tracked = ", and verl's tracker names it" if note.resumes else ""
        instead = "no step of the run is complete" if whole is None else f"step {whole} is complete"
        remedy = "Put a whole copy in its place if there is one"
        if all(text == describe(UNREADABLE, 1) for text in note.damaged.values()):
            remedy = "Look at its permissions, and at its disk"
        if note.unfinished:  # a job may be writing the file
            remedy = f"If a job is saving this step now, wait for it. If not: {remedy[0].lower()}{remedy[1:]}"
        yield f"{note.name} is not whole{tracked}: {'; '.join(note.damage_phrases)}. {remedy}; {instead}"
    if len(damaged) > _MOST_NOTES:
        others = sorted({checkpoint.step for checkpoint in damaged[_MOST_NOTES:]})
        yield f"{of_run(damaged[0].run)}so are {len(others)} more steps, from {others[0]} to {others[-1]}"


def _newest_whole(checkpoints: Sequence[Checkpoint]) -> int | None:
    """The newest step of which all roles are complete."""
    partial = {checkpoint.step for checkpoint in checkpoints if not checkpoint.complete}
    return max((checkpoint.step for checkpoint in checkpoints if checkpoint.step not in partial), default=None)
