"""Makes a step that another number of ranks can resume from, of all roles; the folder appears whole or not at all."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cloudrl.checkpoints.fsdp import shard_inputs
from cloudrl.checkpoints.run_folder import RunOfStep, below_step, files_of, track
from cloudrl.checkpoints.saved_files import OpenFile, SavedFiles
from cloudrl.checkpoints.sources import CheckpointSource
from cloudrl.checkpoints.staging import RESHARD, refuse_existing, staged
from cloudrl.errors import CheckpointError, InputError
from cloudrl.private_files import sync_to_disk
from cloudrl.saves.inventory import Checkpoint
from cloudrl.saves.names import DATA, FSDP_CONFIG, OF_LOADER, SHARD, TRACKER, is_ours, step_folder
from cloudrl.saves.places import FileCopy
from cloudrl.shards.progress import OnProgress, silent
from cloudrl.shards.reshard import ReshardPlan, plan_reshard, write_shards
from cloudrl.shards.source import ShardSource, crc32

_PIECE_BYTES = 8 << 20
_VERSION = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})(\..*|\+.*)?")


@dataclass(frozen=True)
class Resharded(RunOfStep):
    """A step for another number of ranks.

    Attributes:
        world_size: Ranks that can resume from it.
        was: Ranks that saved it.
        files: How many were written.
        size_bytes: Of them.
        notes: What to know of it.
    """

    world_size: int
    was: int
    files: int
    size_bytes: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        fields = {**asdict(self), "path": str(self.path.absolute()), "notes": list(self.notes)}
        return {name: value for name, value in fields.items() if name != "folder"}


def reshard(
    roles: Sequence[Checkpoint],
    source: CheckpointSource,
    folder: Path,
    world_size: int,
    *,
    torch: str | None = None,
    on_progress: OnProgress = silent,
) -> Resharded:
    """Write `folder/global_step_N` for another number of ranks, and name it in a tracker; the old files stay.

    Args:
        roles: All of one step, complete.
        source: Where they are.
        folder: The run to be; made if need be, and it has no such step.
        world_size: Ranks that are going to resume from it.
        torch: The version of the torch that will; see `plan_reshard`.
        on_progress: Called with bytes.

    Raises:
        InputError: The step exists there, the folder cannot be made, so many ranks are not possible, or `torch` is
            needed or not known.
        CheckpointError: See `plan_reshard`; or there is no room, a file is damaged, or cannot be read or written.
    """
    step = roles[0].step
    target = folder / step_folder(".", step)
    refuse_existing(target, RESHARD)
    plans = {role.role: plan_role(role, source.open, world_size, torch) for role in roles}
    copies, left_out = _files_beside(roles)
    size = sum(plan.size_bytes for plan in plans.values()) + sum(file.size_bytes for file in copies.values())
    shown = Shown(sum(plan.transfer_bytes for plan in plans.values()), on_progress)
    with staged(target, size, work=RESHARD, sync=True) as part:
        for name, file in copies.items():
            _copy(source.open(file), part / name)
        for role in roles:
            _write_role(role, plans[role.role], source, part, shown)
        written = [path.stat().st_size for path in part.rglob("*") if path.is_file() and path.name[0] != "."]
    shown.finish()
    try:
        notes = track(folder, step)
        sync_to_disk(folder / TRACKER)
    except OSError as error:
        raise InputError(f"{folder / TRACKER} cannot be written: {error.strerror or error}") from error
    warnings = [warning for plan in plans.values() for warning in plan.warnings]
    was = next(iter(plans.values())).old_world_size
    return Resharded(folder, step, world_size, was, len(written), sum(written), (*warnings, *left_out, *notes))


class Shown:
    """Progress over all roles."""

    def __init__(self, total_bytes: int, on_progress: OnProgress) -> None:
        self._total, self._on_progress = total_bytes, on_progress
        self._before = 0

    def role(self, done_bytes: int, total_bytes: int) -> None:
        """So much of one role; its end is reported once."""
        done = self._before + done_bytes
        if done_bytes == total_bytes:
            self._before = done
        if done < self._total:
            self._on_progress(done, self._total)

    def finish(self) -> None:
        """All is done."""
        self._on_progress(self._total, self._total)


def plan_role(role: Checkpoint, open_file: OpenFile, world_size: int, torch: str | None) -> ReshardPlan:
    """How the shards of a role are cut for so many ranks; see `reshard`."""
    if not role.is_sharded:
        raise CheckpointError(
            f"{role.name} was not saved by FSDP: only its shards can be cut anew for another number of ranks",
            hint="Go on with the same number of GPUs, or merge the model and train on from that: "
            "cloudrl checkpoints merge --to ./model",
        )
    save = SavedFiles(role, open_file)
    version = save.read_json(FSDP_CONFIG).get("FSDP_version")
    inputs = replace(shard_inputs(save), warnings=())  # they are of what a merge leaves out
    known = version if type(version) is int else None
    return plan_reshard(inputs, world_size, fsdp_version=known, torch=_parse(torch))


def _parse(torch: str | None) -> tuple[int, int] | None:
    if torch is None:
        return None
    match = _VERSION.fullmatch(torch)
    if match is None:
        raise InputError(f"{torch!r} is not a version of torch", hint="For example: --torch 2.11")
    return int(match[1]), int(match[2])


def _files_beside(roles: Sequence[Checkpoint]) -> tuple[dict[str, FileCopy], list[str]]:
    """What is copied as it is, by its path below the step, and what is to be told of what is not."""
    files = {path: file for path, file in files_of(roles).items() if not _is_made_anew(path.rpartition("/")[2])}
    of_ranks = [path for path in files if "/" not in path and OF_LOADER.fullmatch(path) and path != DATA]
    kept = {path: file for path, file in files.items() if path not in of_ranks}
    if not of_ranks:
        return kept, []
    why = "each is the place of one of the old ranks in the data, so the epoch begins anew"
    return kept, [f"{len(of_ranks)} states of data loaders ({of_ranks[0]} and so on) are left out: {why}"]


def _is_made_anew(name: str) -> bool:
    return bool(SHARD.fullmatch(name)) or is_ours(name) or name == FSDP_CONFIG


def _write_role(role: Checkpoint, plan: ReshardPlan, source: CheckpointSource, part: Path, shown: Shown) -> None:
    folder = part / folder_of(role)
    folder.mkdir(parents=True, exist_ok=True)
    write_shards(plan, folder, shown.role)
    config = SavedFiles(role, source.open).read_json(FSDP_CONFIG)
    if config:
        (folder / FSDP_CONFIG).write_text(json.dumps({**config, "world_size": plan.goal.world_size}, indent=4))


def folder_of(role: Checkpoint) -> str:
    """Where its shards are below the step; "" for verl's SFT trainer."""
    name, copies = next((name, copies) for name, copies in role.files.items() if SHARD.fullmatch(name))
    return below_step(role, name, copies[0]).rpartition("/")[0]


def _copy(source: ShardSource, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    size, crc, at = source.size_bytes(), 0, 0
    with path.open("xb") as out:
        while at < size:
            piece = source.read(at, min(_PIECE_BYTES, size - at))
            out.write(piece)
            crc, at = crc32(piece, crc), at + len(piece)
    if crc != source.crc32(0, size):
        raise CheckpointError(f"{source.label} changed while it was copied", hint="Is a job saving this step?")
