"""Notices on its node that a rank has finished a save, and records what it consists of (`cloudrl.saves.records`).

verl neither syncs nor renames what it saves, so a file counts as finished when the directory at its end, which torch
writes last, can be read, and nothing of its rank has changed between two looks. When anything of a rank changes, its
record goes at once: none is better than that of an older save. Of a shard only the directory is read, some KB, which
keeps no training waiting.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from hashlib import sha256
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Callable,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Set,
    Tuple,
)

from cloudrl.errors import CheckpointError
from cloudrl.node.files import Refused, open_below
from cloudrl.saves.names import RECORD, SHARD, record_file, step_folder
from cloudrl.saves.records import FileRecord, SaveRecord
from cloudrl.saves.scan import scan
from cloudrl.saves.zip_directory import NoDirectory, directory_digest

if TYPE_CHECKING:
    from pathlib import Path

_LOOK_EVERY_S = 5.0
_WRITE_AGAIN_S = 60.0
_SMALL_BYTES = 16 << 20
"""Of the files that belong to no rank: a tokenizer, but no weights."""


class _Save(NamedTuple):
    """Whose files: one rank's of one role of one step."""

    run: str
    step: int
    role: str
    world_size: int
    rank: int

    @property
    def folder(self) -> str:
        return f"{step_folder(self.run, self.step)}/{self.role}"

    @property
    def record(self) -> str:
        """Where its record is."""
        return f"{self.folder}/{record_file(self.world_size, self.rank)}"


_Files = Dict[str, Tuple[int, float]]
"""Name -> (bytes, time of change)."""


class SaveRecorder:
    """The saves of one folder; `scan_once` is called again and again.

    A record that was there before this object is taken as it is while the sizes agree and no file was written after
    it: it is older than whatever else has happened to the files since, and that is its purpose.

    Args:
        root: The folder of checkpoints.
        digest: Of the directory of an open file.
        clock: For the date in the record.
        timer: Seconds that never go back.
        say: Told once of each run whose saves cannot be recorded.

    Attributes:
        scan_s: How long the last look has taken to list the folder.
    """

    def __init__(
        self,
        root: Path,
        *,
        digest: Callable[[int], str] = directory_digest,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._root, self._digest_of, self._say = root, digest, say
        self._clock, self._timer = clock, timer
        self.scan_s = 0.0
        self._before: Dict[_Save, _Files] = {}
        self._recorded: Dict[_Save, _Files] = {}
        self._not_before: Dict[_Save, float] = {}
        self._told: Set[str] = set()
        self._looked = False

    def scan_once(self) -> List[Path]:
        """One look; returns the records that it has written."""
        began = self._timer()
        saves, known = self._saves()
        self.scan_s = self._timer() - began
        self._reconcile(saves, known)
        written = []
        for save, files in saves.items():
            record = self._digest(save, files) if self._is_due(save, files) else None
            path = None if record is None else self._write(save, record)
            if path is not None:
                written.append(path)
                self._recorded[save] = files
        self._before = saves
        self._recorded = {save: files for save, files in self._recorded.items() if save in saves}
        self._not_before = {save: at for save, at in self._not_before.items() if save in saves}
        return written

    def reset(self) -> None:
        """Somebody else has looked after the folder: the next look believes the records that it finds."""
        self._before, self._recorded, self._looked = {}, {}, False

    def _saves(self) -> Tuple[Dict[_Save, _Files], Set[_Save]]:
        """All ranks that have files here, and those of them whose record speaks of the same files."""
        saves: Dict[_Save, _Files] = {}
        known: Set[_Save] = set()
        for run in scan(self._root):
            for step in run["steps"]:
                for role in step["roles"]:
                    found = _by_rank(run["run"], step["step"], role)
                    saves.update(found)
                    known |= {save for save, files in found.items() if _agrees(role["saves"], save, files)}
        return saves, known

    def _reconcile(self, saves: Mapping[_Save, _Files], known: Set[_Save]) -> None:
        """Believe records at the first look, and remove those that speak of other files than there are now."""
        first, self._looked = not self._looked, True
        for save, files in saves.items():
            if first and save in known:
                self._recorded[save] = files
            elif first or self._recorded.get(save, files) != files:
                self._recorded.pop(save, None)
                with contextlib.suppress(OSError):
                    (self._root / save.record).unlink()

    def _is_due(self, save: _Save, files: _Files) -> bool:
        steady = self._before.get(save) == files and save not in self._recorded
        return steady and self._timer() >= self._not_before.get(save, 0.0)

    def _digest(self, save: _Save, files: _Files) -> Optional[SaveRecord]:
        """None while a file has no end yet, or changes; a later look tries again."""
        found = {}
        try:
            for name, (size_bytes, _) in sorted(files.items()):
                with open_below(self._root, os.path.normpath(f"{save.folder}/{name}")) as file:
                    found[name] = FileRecord(size_bytes, self._sha256(name, file))
            now = {name: self._state(save, name) for name in files}
        except (OSError, Refused, NoDirectory):
            return None
        if now != files:
            return None
        return SaveRecord(save.step, save.role, save.rank, save.world_size, round(self._clock(), 3), found)

    def _sha256(self, name: str, file: BinaryIO) -> str:
        return self._digest_of(file.fileno()) if SHARD.fullmatch(name) else sha256(file.read()).hexdigest()

    def _write(self, save: _Save, record: SaveRecord) -> Optional[Path]:
        """None where it cannot be written; a later look tries again, and other runs are not kept waiting."""
        try:
            return _write(self._root / save.record, record.to_json())
        except OSError as error:
            self._not_before[save] = self._timer() + _WRITE_AGAIN_S
            if save.run not in self._told:
                self._told.add(save.run)
                where, reason = self._root / save.run, error.strerror or str(error)
                self._say(f"warning: finished saves of {where} cannot be recorded: {reason}")
            return None

    def _state(self, save: _Save, name: str) -> Tuple[int, float]:
        info = (self._root / save.folder / name).lstat()
        return info.st_size, info.st_mtime


class SaveRecorderThread(threading.Thread):
    """Looks every few seconds, for as long as the agent lives.

    Args:
        is_mine: Whether this node writes the records; of several with the same folder one does.
    """

    def __init__(
        self, saves: SaveRecorder, *, is_mine: Callable[[], bool], every_s: float = _LOOK_EVERY_S
    ) -> None:
        super().__init__(name="cloudrl-saves", daemon=True)
        self._saves, self._is_mine, self._every_s = saves, is_mine, every_s

    def run(self) -> None:
        """Called by the thread."""
        while True:
            time.sleep(self._pause_s())
            with contextlib.suppress(
                OSError
            ):  # a volume that hangs or is full; no training ends for its sake
                self._look()

    def _pause_s(self) -> float:
        """On a slow network volume less often: it is listed for at most a twentieth of the time."""
        return max(self._every_s, 19 * self._saves.scan_s)

    def _look(self) -> None:
        if self._is_mine():
            self._saves.scan_once()
        else:
            self._saves.reset()


def _by_rank(run: str, step: int, role: Mapping[str, Any]) -> Dict[_Save, _Files]:
    found: Dict[_Save, _Files] = {}
    small: _Files = {}
    for file in role["files"]:
        match = SHARD.fullmatch(file["path"])
        if match:
            save = _Save(run, step, role["role"], int(match[2]), int(match[3]))
            found.setdefault(save, {})[file["path"]] = (file["size_bytes"], file["modified_at"])
        elif file["size_bytes"] <= _SMALL_BYTES and not RECORD.fullmatch(file["path"]):
            small[file["path"]] = (file["size_bytes"], file["modified_at"])
    for save, files in found.items():
        files.update(small if save.rank == 0 else {})
    return found


def _agrees(records: List[Dict[str, Any]], save: _Save, files: _Files) -> bool:
    """Whether there is a record of exactly these files with these sizes, and none was written after it."""
    for value in records:
        with contextlib.suppress(CheckpointError):
            record = SaveRecord.from_json(value)
            if (record.world_size, record.rank) == (save.world_size, save.rank):
                sizes = {name: each.size_bytes for name, each in record.files.items()}
                same = sizes == {name: size for name, (size, _) in files.items()}
                return same and all(modified_at <= record.recorded_at for _, modified_at in files.values())
    return False


def _write(path: Path, value: Mapping[str, Any]) -> Optional[Path]:
    """Appears whole or not at all; None if the step was pruned meanwhile."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(json.dumps(value, indent=1) + "\n")
        part.replace(path)
    except FileNotFoundError:
        return None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    return path
