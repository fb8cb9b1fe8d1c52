"""Cuts a step for another number of ranks, and puts the new shards beside the old ones, in the same folder of the step.

The names of shards have their number of ranks in them, so both stay apart. No file that is there is replaced. The new
ones have the date of the old ones: they are of the same save, and whatever compares dates still tells what is newer.
"""

import errno
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudrl.checkpoints.reshard import Shown, folder_of, plan_role
from cloudrl.checkpoints.saved_files import OpenFile
from cloudrl.checkpoints.staging import RESHARD, staged
from cloudrl.errors import CheckpointError
from cloudrl.private_files import sync_to_disk
from cloudrl.saves.inventory import Checkpoint
from cloudrl.saves.names import OURS, SHARD, file_name, step_folder
from cloudrl.shards.progress import OnProgress, silent
from cloudrl.shards.reshard import write_shards
from cloudrl.shards.source import LocalShard

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""How a file system says that it has no hard links."""


@dataclass(frozen=True)
class Beside:
    """What was written.

    Attributes:
        world_size: Ranks that can resume from the step now.
        was: Ranks that saved it.
        files: How many files.
        size_bytes: Of them.
        warnings: What to look at.
    """

    world_size: int
    was: int
    files: int
    size_bytes: int
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "world_size": self.world_size, "was": self.was, "files": self.files, "size_bytes": self.size_bytes,
            "warnings": list(self.warnings),
        }  # fmt: skip


def reshard_beside(
    roles: Sequence[Checkpoint],
    open_file: OpenFile,
    root: Path,
    world_size: int,
    *,
    torch: str | None = None,
    on_progress: OnProgress = silent,
) -> Beside:
    """Put the shards for so many ranks into the folder of the step on this machine.

    A call that was killed may be repeated: it ends with the same files.

    Args:
        roles: All of one step, complete, of one world size.
        open_file: Gives the bytes of one of their files.
        root: The folder of checkpoints.
        world_size: Ranks that are going to resume from it.
        torch: The version of the torch that will; see `plan_reshard`.
        on_progress: Called with bytes.

    Raises:
        InputError: So many ranks are not possible, or `torch` is needed or not known.
        CheckpointError: See `plan_reshard`; or there is no room, a file is damaged, cannot be read or written, or
            another one of its name is there.
    """
    run, step = roles[0].run, roles[0].step
    plans = {role.role: plan_role(role, open_file, world_size, torch) for role in roles}
    saved_at = max(role.modified_at for role in roles)
    work = root / OURS / "reshard" / f"{file_name(run)}-{step}-{world_size}-{saved_at:.0f}"
    shown = Shown(sum(plan.transfer_bytes for plan in plans.values()), on_progress)
    if not work.exists():  # otherwise it is whole, and its files were not all put in their places
        with staged(work, sum(plan.size_bytes for plan in plans.values()), work=RESHARD, sync=True) as part:
            for role in roles:
                folder = part / folder_of(role)
                folder.mkdir(parents=True, exist_ok=True)
                write_shards(plans[role.role], folder, shown.role)
    sizes = [_put(path, root / step_folder(run, step) / path.relative_to(work), saved_at) for path in _in_order(work)]
    shutil.rmtree(work, ignore_errors=True)
    shown.finish()
    warnings = tuple(warning for plan in plans.values() for warning in plan.warnings)
    return Beside(world_size, next(iter(plans.values())).old_world_size, len(sizes), sum(sizes), warnings)


def _in_order(work: Path) -> list[Path]:
    """The weights last: without them nothing counts a step as one of so many ranks."""
    paths = [path for path in work.rglob("*.pt") if SHARD.fullmatch(path.name)]
    return sorted(paths, key=lambda path: (path.name.startswith("model_"), str(path)))


def _put(path: Path, target: Path, saved_at: float) -> int:
    """Give a file its place; returns its bytes.

    Raises:
        CheckpointError: Another file is there, or it cannot be written.
    """
    size = path.stat().st_size
    try:
        os.utime(path, (saved_at, saved_at))
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(target):
            _refuse_other(path, target, size)
            return size
        try:
            os.link(path, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            path.rename(target)
        sync_to_disk(target.parent)
    except OSError as error:
        raise CheckpointError(f"{target} cannot be written: {error.strerror or error}") from error
    return size


def _refuse_other(path: Path, target: Path, size: int) -> None:
    """Raises: CheckpointError: what is there has other bytes, so it was not made by the same call before."""
    is_same = target.is_file() and target.stat().st_size == size
    if not is_same or LocalShard(target).crc32(0, size) != LocalShard(path).crc32(0, size):
        raise CheckpointError(
            f"{target} is there already and differs from what would be written",
            hint=f"It may be of an earlier attempt. Move it away: mv {target} {target}.old",
        )
