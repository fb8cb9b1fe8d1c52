"""A folder that appears whole or not at all: written under another name beside it, then renamed."""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cloudrl.errors import CheckpointError, InputError
from cloudrl.private_files import refuse_foreign, sync_to_disk
from cloudrl.units import size_text

_LOCK = ".cloudrl.lock"
"""Says that a folder is ours: what is in it may be deleted."""
_SPARE_BYTES = 64 << 20
_DISCARD_TRIES, _DISCARD_PAUSE_S = 100, 0.02


class Work(NamedTuple):
    """What is done, for messages, and how the other name of a folder ends while it is."""

    noun: str
    participle: str
    suffix: str


MERGE = Work("merge", "merging", ".merging")
RESHARD = Work("reshard", "resharding", ".part")


@contextmanager
def staged(target: Path, size_bytes: int, *, work: Work = MERGE, sync: bool = False) -> Generator[Path]:
    """A folder to write into; when the block ends well, it is renamed to `target`, else removed.

    What a killed process has left there is removed by the next one. While one process writes, another one is refused.
    A folder of that name that is not ours is not touched.

    Args:
        target: Must not exist.
        size_bytes: What is going to be written.
        work: What is done.
        sync: Wait until the disk has it.

    Raises:
        InputError: The target exists or cannot be made there, or something of the user's has the other name.
        CheckpointError: There is not enough room, another process writes it, or the disk fails, also within the block.
    """
    target = Path(os.path.abspath(target))  # noqa: PTH100 - keeps a link as it is named
    refuse_existing(target, work)
    folder = target.parent / f".{target.name}{work.suffix}"
    with _locked(folder, target, work):
        try:
            _empty(folder)
            check_room(target.parent, size_bytes)
            yield folder
            refuse_existing(target, work)
            _publish(folder, target, sync=sync)
        except BaseException as error:
            _discard(folder)
            if not isinstance(error, OSError):
                raise
            raise CheckpointError(
                f"{error.filename or target} cannot be written: {error.strerror or error}",
                hint="Nothing is left behind. Name a folder on another disk.",
            ) from error


def refuse_existing(target: Path, work: Work = MERGE) -> None:
    """Raises: InputError: there is something already."""
    if os.path.lexists(target):
        raise InputError(
            f"{target} exists already, and a {work.noun} never writes into what is there",
            hint="Name another folder, or remove this one first.",
        )


def check_room(folder: Path, size_bytes: int) -> None:
    """Raises: CheckpointError: the disk of an existing folder has less than that and some spare room free."""
    free = shutil.disk_usage(folder).free
    if free < size_bytes + _SPARE_BYTES:
        raise CheckpointError(
            f"{folder} has {size_text(free)} free; {size_text(size_bytes)} are to be written, "
            f"and {size_text(_SPARE_BYTES)} must stay free",
            hint="Name a folder on another disk, or free some room.",
        )


@contextmanager
def _locked(folder: Path, target: Path, work: Work) -> Generator[None]:
    """Make the folder, or take over what a killed process has left, and be the only process that writes there."""
    was_there = os.path.lexists(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        is_new = _make(folder, work)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror}: {error.filename}") from error
    except (KeyboardInterrupt, SystemExit):
        if not was_there:
            _discard(folder)
        raise
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _busy(target, work) from None
        except OSError as error:  # without a lock two merges would mix
            if is_new:
                with contextlib.suppress(OSError):
                    (folder / _LOCK).unlink()
                    folder.rmdir()
            raise InputError(
                f"{target} cannot be written: its file system has no locks ({error.strerror or error})",
                hint="Name a folder on a local disk, and copy it from there.",
            ) from error
        if not _is_at(folder / _LOCK, lock):  # it was another process's, which ended just now and removed it
            raise _busy(target, work)
        yield
    finally:
        os.close(lock)


def _discard(folder: Path) -> None:
    """Remove a folder, also if threads that are about to end still write there.

    Raises:
        KeyboardInterrupt, SystemExit: what came meanwhile, when it is done: Ctrl-C twice must leave nothing either.
    """
    interrupted: BaseException | None = None
    for _ in range(_DISCARD_TRIES):
        try:
            shutil.rmtree(folder, ignore_errors=True)
            if not os.path.lexists(folder):
                break
            time.sleep(_DISCARD_PAUSE_S)
        except (KeyboardInterrupt, SystemExit) as again:
            interrupted = again
    if interrupted is not None:
        raise interrupted


def _make(folder: Path, work: Work) -> bool:
    """Make the folder, unless it is there and ours; whether it was made.

    Raises:
        InputError: It is there, and we have not made it.
    """
    try:
        folder.mkdir()
    except FileExistsError:
        refuse_foreign(folder)
        is_folder = folder.is_dir() and not folder.is_symlink()
        names = {entry.name for entry in folder.iterdir()} if is_folder else {""}
        if names and _LOCK not in names:  # none: a process was killed before it had its lock
            raise InputError(
                f"{folder} is in the way: a {work.noun} writes there first, and cloudrl has not made what is there",
                hint=f"Move it away, or name another folder than {folder.name[1:].removesuffix(work.suffix)}",
            ) from None
        return False
    return True


def _busy(target: Path, work: Work) -> CheckpointError:
    return CheckpointError(
        f"another process is {work.participle} into {target}", hint="Wait for it, or name another folder."
    )


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is still the one of this name."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except OSError:
        return False


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != _LOCK:
            entry.unlink()


def _publish(folder: Path, target: Path, *, sync: bool) -> None:
    if sync:
        for path in (entry for entry in folder.rglob("*") if entry.name != _LOCK):
            sync_to_disk(path)
    (folder / _LOCK).unlink()
    if sync:
        sync_to_disk(folder)
    folder.rename(target)
    if sync:
        with contextlib.suppress(OSError):  # the model is there; only its name may not be on the disk yet
            sync_to_disk(target.parent)
