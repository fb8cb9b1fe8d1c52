"""Copies a checkpoint as it is, all ranks of all roles, into one folder; goes on where it stopped."""

import contextlib
import glob
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudrl.checkpoints.run_folder import RunOfStep, files_of, track
from cloudrl.checkpoints.sources import CheckpointSource
from cloudrl.checkpoints.staging import check_room
from cloudrl.errors import CheckpointError, InputError
from cloudrl.saves.inventory import Checkpoint
from cloudrl.saves.names import step_folder
from cloudrl.saves.places import FileCopy
from cloudrl.shards.progress import Meter, OnProgress, silent

_PIECE_BYTES = 8 << 20


@dataclass(frozen=True)
class Pulled(RunOfStep):
    """What a pull has brought; `notes` are what to know of it."""

    files: int
    size_bytes: int
    notes: tuple[str, ...] = ()


def pull(
    roles: Sequence[Checkpoint], source: CheckpointSource, folder: Path, *, on_progress: OnProgress = silent
) -> Pulled:
    """Copy all files of a step into `folder/global_step_N`, and then name it in a tracker.

    A file appears once its bytes are those of its node, by their CRC-32. What an earlier call has brought stays if it
    still has that CRC-32, also half of a file. A tracker that names a later step of the folder stays as it is.

    Args:
        roles: All of one step.
        source: Where they are.
        folder: The run to be; made if need be.
        on_progress: Called with bytes.

    Raises:
        CheckpointError: There is no room, a file is damaged on the way, or cannot be read.
        InputError: The folder cannot be written.
    """
    step = roles[0].step
    files = files_of(roles)
    total = sum(file.size_bytes for file in files.values())
    target = folder / step_folder(".", step)
    try:
        target.mkdir(parents=True, exist_ok=True)
        check_room(target, sum(_missing_bytes(target / name, file) for name, file in files.items()))
        meter = Meter(total, on_progress)
        notes = [note for name, file in files.items() if (note := _pull_one(source, file, target / name, meter))]
        notes += track(folder, step)
    except OSError as error:
        raise InputError(f"{error.filename or folder} cannot be written: {error.strerror or error}") from error
    meter.finish()
    return Pulled(folder, step, len(files), total, tuple(notes))


def _part(path: Path, file: FileCopy) -> Path:
    """Where a file grows; another save of the same step grows elsewhere."""
    return path.with_name(f".{path.name}.{file.size_bytes}-{int(file.modified_at)}.part")


def _missing_bytes(path: Path, file: FileCopy) -> int:
    """What an earlier call has not brought yet."""
    if _is_there(path, file):
        return 0
    part = _part(path, file)
    return file.size_bytes - (part.stat().st_size if part.exists() else 0)


def _is_there(path: Path, file: FileCopy) -> bool:
    """Whether an earlier call has brought it: of this size, and with the date of that save."""
    try:
        info = path.stat()
    except OSError:
        return False
    return info.st_size == file.size_bytes and abs(info.st_mtime - file.modified_at) < 1e-3


def _pull_one(source: CheckpointSource, file: FileCopy, path: Path, meter: Meter) -> str | None:
    """Bring a file that is not there, or not as it was; returns what is to be told of it."""
    remote, note = source.open(file), None
    if _is_there(path, file):
        if _crc32(path) == remote.crc32(0, file.size_bytes):
            meter.add(file.size_bytes)
            return None
        note = f"{path} was damaged since it was pulled: it was copied again"
    part = _part(path, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    with part.open("a+b") as out:
        out.seek(0)
        crc = 0
        while piece := out.read(_PIECE_BYTES):  # what an earlier call has brought; then it is at the end
            crc = zlib.crc32(piece, crc)
        meter.add(out.tell())
        while (have := out.tell()) < file.size_bytes:
            piece = remote.read(have, min(_PIECE_BYTES, file.size_bytes - have))
            out.write(piece)
            out.flush()
            crc = zlib.crc32(piece, crc)
            meter.add(len(piece))
    wanted = remote.crc32(0, file.size_bytes)
    if crc != wanted:
        with contextlib.suppress(OSError):
            part.unlink()
        raise CheckpointError(
            f"{remote.label} is damaged on its way: its CRC-32 is {wanted:08x}, and {crc:08x} arrived",
            hint="Type the same command again",
        )
    os.utime(part, (file.modified_at, file.modified_at))
    part.replace(path)
    for stale in path.parent.glob(
        f".{glob.escape(path.name)}.[0-9]*-[0-9]*.part"
    ):  # of a save that has been replaced since
        with contextlib.suppress(OSError):
            stale.unlink()
    return note


def _crc32(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            crc = zlib.crc32(piece, crc)
    return crc
