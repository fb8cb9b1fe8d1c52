"""What a node has copied from others, so that it removes nothing else when a copy is not needed any more.

In the folder of each step is a hidden file with path, size and date of each copy. A file that a rank of the node saves
again has another date, and is no copy then.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Dict, Iterable, Tuple

from cloudrl.foreign import parse_json
from cloudrl.private_files import write_file
from cloudrl.protocol.step_copies import ClearOrder, WantedFile
from cloudrl.saves.below import Refused, open_below, open_folder_below

_LIST = ".cloudrl_copies.json"
_MAX_BYTES = 4 << 20
_SAME_S = 0.001


def note_copies(root: Path, folder: str, files: Iterable[WantedFile]) -> None:
    """Add copies to those of a step.

    Raises:
        OSError: it cannot be written down.
    """
    noted = {**_noted(root, folder), **{file.path: (file.size_bytes, file.modified_at) for file in files}}
    write_file(root / folder / _LIST, json.dumps(noted), mode=0o644)


def clear_copies(root: Path, order: ClearOrder) -> int:
    """Remove what this node has copied and what has not changed since; returns how many bytes that were.

    Raises:
        OSError: a copy cannot be removed.
        Refused: a link is in the way.
    """
    noted, freed = _noted(root, order.folder), 0
    for file in order.files:
        if file.path not in noted:
            continue
        parent, _, name = file.path.rpartition("/")
        with contextlib.suppress(FileNotFoundError):
            descriptor = open_folder_below(root, parent)
            try:
                info = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                states = [noted[file.path], (file.size_bytes, file.modified_at)]
                # a date goes through a float on its way to another node
                if all(size == info.st_size and abs(date - info.st_mtime) < _SAME_S for size, date in states):
                    os.unlink(name, dir_fd=descriptor)
                    freed += info.st_size
            finally:
                os.close(descriptor)
    _remove_empty(root / order.folder)
    return freed


def _remove_empty(step: Path) -> None:
    """Leave no folder of a step of which nothing is left here but the list."""
    names = [path for path in step.rglob("*") if not path.is_dir()]
    if names == [step / _LIST]:
        names[0].unlink()
        folders = sorted((path for path in step.rglob("*")), key=lambda path: -len(path.parts))
        with contextlib.suppress(OSError):  # a save has begun here just now
            for folder in (*folders, step):
                folder.rmdir()


def _noted(root: Path, folder: str) -> Dict[str, Tuple[int, float]]:
    try:
        with open_below(root, f"{folder}/{_LIST}") as file:
            value = parse_json(file.read(_MAX_BYTES))
    except (OSError, Refused, ValueError):
        return {}
    if not isinstance(value, dict):
        return {}
    return {
        str(path): (state[0], state[1])
        for path, state in value.items()
        if isinstance(state, list) and len(state) == 2 and all(isinstance(each, (int, float)) for each in state)
    }
