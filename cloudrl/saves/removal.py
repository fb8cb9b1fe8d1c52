"""Removing a step from a folder: it is renamed first, so that nothing lists a step that is half removed."""

import os
import secrets
import shutil
from pathlib import Path
from typing import Any, Iterator, List

from cloudrl.saves.below import Refused, open_folder_below
from cloudrl.saves.names import OURS, STEP

_ASIDE = ".cloudrl-pruned-"
_SET_ASIDE = ".cloudrl-set-aside-"
"""Before the name of a step that a run has left behind. It stays: its shards may be all that is left of them."""


def remove_step(root: Path, path: str) -> None:
    """Remove a step below `root`: it stops counting as a checkpoint at once, then its files go.

    Raises:
        Refused, FileNotFoundError: as `tombstone`.
        OSError: it no longer counts as a step, and some of its files cannot be removed.
    """
    purge(root, tombstone(root, path))


def tombstone(root: Path, path: str) -> str:
    """Rename a step below `root`, so that it no longer counts as a checkpoint; returns the run that it belonged to.

    Raises:
        Refused: the path leaves the folder, passes a link, or names no step.
        FileNotFoundError: it does not exist.
    """
    return _rename(root, path, _ASIDE)


def set_aside(root: Path, path: str) -> None:
    """Rename a step below `root`, so that no job goes on from it or saves over it; its files stay for now.

    Raises:
        Refused, FileNotFoundError: as `tombstone`.
    """
    _rename(root, path, _SET_ASIDE)


def _rename(root: Path, path: str, prefix: str) -> str:
    parent, _, name = path.rpartition("/")
    if not STEP.fullmatch(name):
        raise Refused(path)
    os.close(open_folder_below(root, path))  # it is there, and no link
    descriptor = open_folder_below(root, parent)
    try:
        os.rename(name, f"{prefix}{name}-{secrets.token_hex(4)}", src_dir_fd=descriptor, dst_dir_fd=descriptor)
    finally:
        os.close(descriptor)
    return parent


def purge(root: Path, run: str) -> None:
    """Remove what was put aside in a run, also by a removal that broke off.

    Raises:
        OSError: of what could not be removed the first; all the rest has gone.
    """
    failed: List[OSError] = []

    def note(_: object, path: object, info: Any) -> None:
        if not isinstance(info[1], FileNotFoundError):  # another node may be at it
            error, where = info[1], str(path).replace(str(folder), str(root / run), 1)
            failed.append(OSError(error.errno, error.strerror or str(error), where))

    descriptor = open_folder_below(root, run)
    try:
        # the folder that was opened, whatever its path leads to now
        folder = Path(f"/proc/self/fd/{descriptor}")
        for aside in folder.glob(f"{_ASIDE}*"):
            shutil.rmtree(aside, onerror=note)
    finally:
        os.close(descriptor)
    if failed:
        raise failed[0]


def runs_with_rest(root: Path) -> Iterator[str]:
    """Runs, as paths below `root`, in which something is that was put aside; it may be all that is left of a run."""
    for text, folders, _ in os.walk(root, followlinks=False):
        if any(name.startswith(_ASIDE) for name in folders):
            yield "" if Path(text) == root else str(Path(text).relative_to(root))
        folders[:] = [name for name in folders if not (name.startswith(_ASIDE) or name == OURS or STEP.fullmatch(name))]
