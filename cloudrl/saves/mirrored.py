"""What of a durable job's steps a mirror has, lacks, and need not keep. Pure.

A mirror outlives the machines of a cluster, so a step that it has is safe. It holds each save in a folder of its
attempt, so two clusters that run one job never write to one file. A save counts once its manifest is there.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cloudrl.protocol.durable_jobs import Attempt, DurableJob
from cloudrl.protocol.mirrors import MIRROR_RANK, MirroredSave, UploadOrder
from cloudrl.protocol.report import NodeReport
from cloudrl.protocol.routes import CHECKPOINTS
from cloudrl.protocol.step_copies import WantedFile
from cloudrl.saves.aggregate import aggregate
from cloudrl.saves.copies import files_of_step, newest_whole_step, of_one_save
from cloudrl.saves.inventory import Checkpoint, Inventory
from cloudrl.saves.keeping import kept_steps, mark_kept
from cloudrl.saves.names import OF_LOADER, SHARD, step_folder
from cloudrl.saves.places import FileCopy


@dataclass(frozen=True)
class UploadPlan:
    """What a mirror lacks of a step.

    Attributes:
        attempt: that has saved it.
        orders: one for each node that has files of it.
    """

    step: int
    attempt: str
    orders: tuple[UploadOrder, ...]


def save_name(attempt: Attempt) -> str:
    """Names an attempt in a mirror: another start of the cluster may use its submission id again."""
    return f"{attempt.submission_id}.{zlib.crc32(attempt.cluster.encode()):08x}"


def attempt_of(job: DurableJob, step: int) -> str:
    """Names the attempt whose save of a step counts: the last one that began before it; "" if none did."""
    return next((save_name(attempt) for attempt in reversed(job.attempts) if attempt.from_step < step), "")


def valid_saves(job: DurableJob, saves: Iterable[MirroredSave]) -> dict[int, MirroredSave]:
    """Step -> the save of it that a resume may take.

    Of the job's own attempts it is the last that began before the step. Where none did, an earlier job of the run may
    have saved it.
    """
    own = {save_name(attempt) for attempt in job.attempts}
    chosen: dict[int, MirroredSave] = {}
    for save in sorted(saves, key=lambda save: save.mirrored_at):
        writer = attempt_of(job, save.step)
        if save.run == job.run and (save.attempt == writer if writer else save.attempt not in own):
            chosen[save.step] = save
    return chosen


def with_mirror(inventory: Inventory, job: DurableJob, mirror: str, saves: Iterable[MirroredSave]) -> Inventory:
    """The same, and the saves of a mirror as further copies of the files of a job's run.

    Args:
        inventory: of the nodes, without abandoned files.
        job: whose run it is.
        mirror: its address.
        saves: that may count, one of each step at most.
    """
    mine = [checkpoint for checkpoint in inventory.checkpoints if checkpoint.run == job.run]
    place = NodeReport(MIRROR_RANK, mirror)
    answers = [(place, _listed(save)) for save in saves]
    if any(checkpoint.is_megatron for checkpoint in mine):
        return inventory
    added = aggregate(answers).checkpoints
    steps = _merged([*mine, *added])
    others = [checkpoint for checkpoint in inventory.checkpoints if checkpoint.run != job.run]
    return replace(inventory, checkpoints=(*others, *steps))


def _merged(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """One checkpoint for each step and role, with the copies of all; files of another save than the nodes' stay out."""
    step_files: dict[int, dict[str, tuple[FileCopy, ...]]] = defaultdict(dict)
    for checkpoint in checkpoints:
        _add(step_files[checkpoint.step], checkpoint.step_files)
    merged: dict[tuple[int, str, int | None], Checkpoint] = {}
    for checkpoint in checkpoints:
        key = checkpoint.step, checkpoint.role, checkpoint.world_size
        known, files = merged.get(key), dict[str, tuple[FileCopy, ...]]()
        for each in (known, checkpoint):
            if each is not None:
                _add(files, each.files)
        base = known or checkpoint
        is_finished = base.finished or checkpoint.finished
        merged[key] = replace(base, files=files, step_files=step_files[base.step], finished=is_finished)
    return [merged[key] for key in sorted(merged, key=lambda key: (key[0], key[1], key[2] or 0))]


def _add(files: dict[str, tuple[FileCopy, ...]], more: Mapping[str, tuple[FileCopy, ...]]) -> None:
    for name, copies in more.items():
        known = files.get(name, ())
        every = (*known, *(copy for copy in copies if copy not in known))
        # the nodes' own copies first, unless they are damaged or of another save
        newest = max(copy.modified_at for copy in every)
        files[name] = tuple(sorted(every, key=lambda copy: (bool(copy.damage), newest - copy.modified_at > 1.0)))


def _listed(save: MirroredSave) -> dict[str, object]:
    """A save as a node would list it."""
    folder = step_folder(save.run, save.step)
    below = {file.path[len(folder) + 1 :]: file for file in save.files}
    without_roles = any(SHARD.fullmatch(path) for path in below)
    roles: dict[str, list[dict[str, object]]] = {}
    files: list[dict[str, object]] = []
    for path, file in below.items():
        role, _, name = path.partition("/")
        if without_roles:
            role, name = ("", "") if OF_LOADER.fullmatch(path) else ("actor", path)
        row = {"path": name or path, "size_bytes": file.size_bytes, "modified_at": file.modified_at}
        (roles.setdefault(role, []) if name else files).append(row)
    listed = [
        {"role": role, "folder": "" if without_roles else role, "files": rows, "saves": []}
        for role, rows in roles.items()
    ]
    step = {"step": save.step, "files": files, "roles": listed}
    place = {"root": CHECKPOINTS, "folder": save.attempt, "identity": "", "marker": "", "markers": []}
    return {"locations": [{**place, "runs": [{"run": save.run, "tracker": None, "steps": [step]}]}]}


def plan_upload(
    inventory: Inventory, job: DurableJob, saves: Collection[MirroredSave], *, first: int | None = None
) -> UploadPlan | None:
    """What a mirror lacks of the newest whole step of a run, then of those that stay for good; None if it has all.

    Args:
        inventory: of the nodes, without abandoned files.
        job: with the mirror.
        saves: that count there.
        first: a step of which some is copied already, to be finished before a newer one as long as it is whole.
    """
    there = {save.step for save in saves}
    inventory = mark_kept(inventory, job)
    found = newest_whole_step(inventory, job.run, job.world_size, None if first in there else first)
    if found is None or found[0] in there:
        found = _kept_and_missing(inventory, job, there)
    if found is None:
        return None
    step, roles = found
    attempt = attempt_of(job, step)
    if not attempt or (step <= max(there, default=0) and not roles[0].kept):
        return None  # of an earlier job, or older than what is there
    by_node: dict[int, list[WantedFile]] = defaultdict(list)
    for _, all_copies in files_of_step(roles):
        copy = of_one_save(all_copies)[0]
        by_node[copy.location.ranks[0]].append(WantedFile(copy.path, copy.size_bytes, copy.modified_at))
    folder = step_folder(job.run, step)
    orders = (
        UploadOrder(node, job.mirror, folder, attempt, tuple(files), job.mirror_rate)
        for node, files in sorted(by_node.items())
    )
    return UploadPlan(step, attempt, tuple(orders))


def _kept_and_missing(
    inventory: Inventory, job: DurableJob, there: Collection[int]
) -> tuple[int, list[Checkpoint]] | None:
    """The oldest whole step that the job keeps for good and the mirror has not: it was passed over for newer ones."""
    mine = [one for one in inventory.checkpoints if one.run == job.run]
    whole = {one.step for one in mine} - {one.step for one in mine if not one.complete}
    # of the steps on both: what the mirror would not keep is removed from it again
    lasting = kept_steps(job, {*(one.step for one in mine), *there}, {*whole, *there})
    steps = {one.step for one in mine if one.kept and one.step in lasting and attempt_of(job, one.step)}
    for step in sorted(steps - set(there)):
        found = newest_whole_step(inventory, job.run, job.world_size, step)
        if found is not None and found[0] == step:
            return found
    return None


def plan_removal(job: DurableJob, saves: Collection[MirroredSave]) -> tuple[MirroredSave, ...]:
    """Saves that a mirror need not keep: beyond the newest `keep`, and of attempts that were left behind before them.

    A job that keeps all of its steps keeps them there, too, and so it does those that stay for good. The newest save
    that counts always stays. What was left behind goes once a step that counts is as far: an attempt that had to begin
    anew takes no progress with it.
    """
    valid = valid_saves(job, saves)
    if not job.keep or not valid:
        return ()
    kept = sorted(valid, reverse=True)[: job.keep]
    for_good = kept_steps(job, valid, valid)
    own = {save_name(attempt) for attempt in job.attempts}
    stays = {(valid[step].step, valid[step].attempt) for step in (*kept, *for_good)}
    return tuple(
        save
        for save in saves
        if save.run == job.run
        and (save.step, save.attempt) not in stays
        # what another cluster or job has saved is removed once it counts and is old, not before
        and ((save.attempt in own and save.step <= kept[0]) or (valid.get(save.step) is save and save.step < min(kept)))
    )
