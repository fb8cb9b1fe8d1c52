"""Which steps may go when only some are to be kept. Pure; `CheckpointSource.remove` does it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cloudrl.errors import InputError
from cloudrl.saves.copies import is_safe
from cloudrl.saves.inventory import Checkpoint, Inventory, resume_order
from cloudrl.saves.names import OF_STEP, of_run, step_folder
from cloudrl.saves.places import Location

_STEP_PATH = re.compile(rf"[^\s'\"=]*{OF_STEP}[0-9]+")


@dataclass(frozen=True)
class Removal:
    """One step of one run, wherever parts of it are; `path` is that of its folder in each of these locations."""

    run: str
    step: int
    path: str
    locations: tuple[Location, ...]
    size_bytes: int
    complete: bool


@dataclass(frozen=True)
class PrunePlan:
    """What goes, and why something stays that would have gone; in the order of runs and steps."""

    removals: tuple[Removal, ...]
    notes: tuple[str, ...] = ()

    @property
    def steps_text(self) -> str:
        """For messages: `1 step`, `3 steps`."""
        return f"{len(self.removals)} step{'s' * (len(self.removals) != 1)}"

    @property
    def size_bytes(self) -> int:
        """What it frees."""
        return sum(removal.size_bytes for removal in self.removals)


def plan_prune(inventory: Inventory, keep: int, *, run: str | None = None, commands: Iterable[str] = ()) -> PrunePlan:
    """Keep the newest complete steps of each run, and all that is newer or that somebody may go on from or writes now.

    Args:
        inventory: All nodes must have answered for it: what a silent node has is not known.
        keep: How many complete steps of each run stay, at least one.
        run: This run alone.
        commands: Of the jobs that have not ended; a step that one of them names stays.

    Raises:
        InputError: `keep` is less than one.
    """
    if keep < 1:
        raise InputError(
            f"--keep-last {keep} would leave nothing to go on from", hint="Keep the newest one: --keep-last 1"
        )
    named = [path for command in commands for path in _STEP_PATH.findall(command)]
    removals: list[Removal] = []
    notes: list[str] = []
    by_run: dict[str, dict[int, list[Checkpoint]]] = defaultdict(lambda: defaultdict(list))
    for checkpoint in inventory.checkpoints:
        if run in (None, checkpoint.run):
            by_run[checkpoint.run][checkpoint.step].append(checkpoint)
    for name, steps in by_run.items():
        whole = sorted(step for step, roles in steps.items() if all(role.complete for role in roles))
        complete = sorted((step for step in whole if not _lost_roles(step, whole, steps)), reverse=True)
        notes += (*_uncounted(name, steps), *_without_role(name, whole, steps))
        if not complete:
            notes.append(f"{of_run(name)}no step is complete, so all stay")
            continue
        oldest, newest = complete[:keep][-1], steps[complete[0]]
        safe = next((step for step in complete if is_safe(steps[step])), None)
        resumed = next((step for step in resume_order(steps) if step in complete), None)
        for step in sorted(step for step in steps if step < oldest):
            reason = _pinned_by(steps[step], named) or _possibly_in_progress(steps[step], newest)
            if step == resumed:
                reason = "a job would go on from it: the later ones are incomplete, or of an earlier attempt"
            elif step == safe:
                reason = "the later ones are on one machine alone"
            reason = reason or kept_text(steps[step])
            if reason:
                notes.append(f"{of_run(name)}step {step} stays: {reason}")
            else:
                removals.append(removal_of(steps[step]))
    return PrunePlan(tuple(removals), tuple(notes))


def kept_text(roles: Sequence[Checkpoint]) -> str:
    """Why a step stays for good, given all its roles; "" for one that may go."""
    return next((f"it is kept for good: {role.kept}" for role in roles if role.kept), "")


def _uncounted(run: str, steps: Mapping[int, Sequence[Checkpoint]]) -> list[str]:
    """Steps that are no reason to remove others, though all of their files are there."""
    damaged = ((step, role) for step, roles in sorted(steps.items()) for role in roles if role.damage_phrases)
    return [
        f"{of_run(run)}step {step} does not count as kept: of its {role.role} {'; '.join(role.damage_phrases)}"
        for step, role in damaged
    ]


def _lost_roles(step: int, whole: Sequence[int], steps: Mapping[int, Sequence[Checkpoint]]) -> set[str]:
    """Roles that the complete step before has, and this one has not, as if a folder had been lost.

    If the step before has not got them either, the run has another trainer since.
    """
    before = max((earlier for earlier in whole if earlier < step), default=step)
    return {role.role for role in steps[before]} - {role.role for role in steps[step]}


def _without_role(run: str, whole: Sequence[int], steps: Mapping[int, Sequence[Checkpoint]]) -> list[str]:
    return [
        f"{of_run(run)}step {step} does not count as kept: it has no {role}, and the step before has one"
        for step in whole
        for role in sorted(_lost_roles(step, whole, steps))
    ]


def _pinned_by(roles: Sequence[Checkpoint], named: Sequence[str]) -> str | None:
    """Why somebody may go on from this step, or it is not the run's own."""
    if any(role.is_link for role in roles):
        return "it is a link, and what is behind it may be needed elsewhere"
    if any(role.tracked for role in roles):
        return "a tracker names it, so a job would go on from it"
    mine = step_folder(roles[0].run, roles[0].step)
    if any(path == mine or path.endswith(f"/{mine}") for path in named):
        return "a job that has not ended names it"
    return None


def _possibly_in_progress(roles: Sequence[Checkpoint], newest: Sequence[Checkpoint]) -> str | None:
    """Why a job may be writing this step now, though there are higher ones: it has begun anew under the same name."""
    written_at, tracker_at = _written_at(roles), roles[0].tracker_at
    if written_at > _written_at(newest):
        return f"it was written after step {newest[0].step}, so a job may be at it"
    if tracker_at is not None and written_at > tracker_at:
        return "it was written after the tracker, so a job may be at it"
    return None


def _written_at(roles: Sequence[Checkpoint]) -> float:
    step_files = (copies[0].modified_at for role in roles for copies in role.step_files.values())
    return max((*(role.modified_at for role in roles), *step_files))


def removal_of(roles: Sequence[Checkpoint]) -> Removal:
    """All of a step, given all its roles, wherever parts of it are."""
    files = {
        (file.location, file.path): file
        for role in roles
        for copies in (*role.files.values(), *role.step_files.values())
        for file in copies
    }
    run, step = roles[0].run, roles[0].step
    return Removal(
        run, step, step_folder(run, step), tuple(dict.fromkeys(location for location, _ in files)),
        sum(file.size_bytes for file in files.values()), all(role.complete for role in roles),
    )  # fmt: skip
