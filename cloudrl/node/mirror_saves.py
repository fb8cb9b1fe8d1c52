"""Manifests of saves in a mirror: read, written, and removed with their files.

A manifest that is written last makes a step count. `coming` tells what an upload that broke off has left, `gone` what a
removal that broke off has left.
"""

from __future__ import annotations

import json
from typing import Dict, Tuple

from cloudrl.foreign import parse_json
from cloudrl.node.mirror_stores import Store
from cloudrl.protocol.mirrors import MirroredSave, file_key, manifest_key, manifests_prefix, parse_manifest_name
from cloudrl.protocol.wire import from_json, to_json
from cloudrl.saves.names import is_step_path, step_folder

_MAX_BYTES = 64 << 20
_FORMAT = 1
COMING, GONE = "coming", "gone"


def read_save(store: Store, attempt: str, folder: str, state: str = "") -> MirroredSave:
    """The manifest of a step, `RUN/global_step_10`.

    Raises:
        OSError: it is not there, or the mirror does not answer.
        ValueError: it is of another form.
    """
    key = manifest_key(attempt, folder, state)
    content = store.get(key, _MAX_BYTES)
    if content is None:
        raise FileNotFoundError(f"the mirror has no {key}")
    value = parse_json(content)
    if not isinstance(value, dict) or value.get("format") != _FORMAT:
        raise ValueError(f"{key} in the mirror has another format than {_FORMAT}")
    save = from_json(MirroredSave, value)
    is_own = save.attempt == attempt and step_folder(save.run, save.step) == folder
    if not is_own or not is_step_path(folder, attempt, *(file.path for file in save.files)):
        raise ValueError(f"{key} in the mirror names other files than those of its step")
    return save


def write_save(store: Store, save: MirroredSave, state: str = "") -> None:
    """Write a manifest: the files of the step are there.

    Raises:
        OSError: it cannot be written.
    """
    key = manifest_key(save.attempt, step_folder(save.run, save.step), state)
    store.put(key, json.dumps({"format": _FORMAT, **to_json(save)}).encode())


def forget_upload(store: Store, save: MirroredSave) -> None:
    """The upload of a save has ended, or is about to be removed.

    Raises:
        OSError: the mirror does not take it.
    """
    store.remove([manifest_key(save.attempt, step_folder(save.run, save.step), COMING)])


def remove_save(store: Store, save: MirroredSave) -> None:
    """Remove a save: from the first moment it does not count, and a removal that breaks off is taken up again.

    Raises:
        OSError: some of it is still there.
    """
    folder = step_folder(save.run, save.step)
    write_save(store, save, GONE)
    store.remove([manifest_key(save.attempt, folder), manifest_key(save.attempt, folder, COMING)])
    store.remove(file_key(save.attempt, file.path, folder) for file in save.files)
    store.remove([manifest_key(save.attempt, folder, GONE)])


class RunInMirror:
    """What a mirror has of one run; manifests that were read once are remembered.

    Args:
        store: the mirror.
        run: its name.
    """

    def __init__(self, store: Store, run: str) -> None:
        self._store, self._run = store, run
        self._known: Dict[Tuple[str, int], MirroredSave] = {}

    def look(self) -> Dict[str, Tuple[MirroredSave, ...]]:
        """State ("", "coming" or "gone") -> saves.

        Raises:
            OSError: the mirror does not answer.
        """
        prefix, found = manifests_prefix(self._run), {}
        states: Dict[str, Tuple[MirroredSave, ...]] = {"": (), COMING: (), GONE: ()}
        for key, size in self._store.names(prefix).items():
            parsed = parse_manifest_name(key[len(prefix) :])
            if parsed is None:
                continue
            attempt, step, state = parsed
            folder = step if self._run == "." else f"{self._run}/{step}"
            if (key, size) not in self._known:
                try:
                    self._known[key, size] = read_save(self._store, attempt, folder, state)
                except (FileNotFoundError, ValueError):  # it has just been removed, or is of another release
                    continue
            found[key, size] = self._known[key, size]
            states[state] += (found[key, size],)
        self._known = found
        return states
