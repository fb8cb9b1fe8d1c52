"""Notices on its node that a rank has finished a save, and records what it consists of (`cloudrl.saves.records`).

verl neither syncs nor renames what it saves, so a file counts as finished when the directory at its end, which torch
writes last, can be read, and no shard of its rank has changed between two looks. When a shard changes, the record
of its rank goes at once: none is better than that of an older save. Of a shard only the directory is read, some KB,
which keeps no training waiting.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from dataclasses import replace
from hashlib import sha256
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Set,
    Tuple,
)

from cloudrl.errors import CheckpointError
from cloudrl.node.files import Refused, open_below
from cloudrl.saves.names import RECORD, SHARD, is_small, record_file, step_folder
from cloudrl.saves.records import FileRecord, SaveRecord
from cloudrl.saves.scan import scan
from cloudrl.saves.zip_directory import NoDirectory, directory_digest

if TYPE_CHECKING:
    from pathlib import Path

_LOOK_EVERY_S = 5.0
_TRY_AGAIN_S = 60.0
"""After a save that was cut off, or cannot be recorded."""


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


class _Found(NamedTuple):
    """Files of a save. The record stands and falls with the shards; what it says of small ones is kept up to date."""

    shards: _Files
    small: _Files
    """For rank 0, those that belong to no rank."""


class _Pause(NamedTuple):
    until: float
    shards: _Files
    """It ends at once when there are others."""


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
        self._before: Dict[_Save, _Found] = {}
        self._recorded: Dict[_Save, _Files] = {}
        self._small: Dict[_Save, _Files] = {}
        self._not_before: Dict[_Save, _Pause] = {}
        self._told: Set[str] = set()
        self._looked = False

    def scan_once(self) -> List[Path]:
        """One look; returns the records that it has written."""
        began = self._timer()
        saves, records = self._saves()
        self.scan_s = self._timer() - began
        self._reconcile(saves, records)
        written = [self._record(save, found, records.get(save)) for save, found in saves.items()]
        self._before = saves
        self._recorded = {save: files for save, files in self._recorded.items() if save in saves}
        self._small = {save: files for save, files in self._small.items() if save in saves}
        self._not_before = {save: pause for save, pause in self._not_before.items() if save in saves}
        return [path for path in written if path is not None]

    def reset(self) -> None:
        """Somebody else has looked after the folder: the next look believes the records that it finds."""
        self._before, self._recorded, self._small, self._looked = {}, {}, {}, False

    def _saves(self) -> Tuple[Dict[_Save, _Found], Dict[_Save, SaveRecord]]:
        """All ranks that have files here, and their records."""
        saves: Dict[_Save, _Found] = {}
        records: Dict[_Save, SaveRecord] = {}
        for run in scan(self._root):
            for step in run["steps"]:
                for role in step["roles"]:
                    found = _by_rank(run["run"], step["step"], role)
                    saves.update(found)
                    for record in _read_records(role["saves"]):
                        save = _Save(run["run"], step["step"], role["role"], record.world_size, record.rank)
                        records[save] = record
        return saves, records

    def _reconcile(self, saves: Mapping[_Save, _Found], records: Mapping[_Save, SaveRecord]) -> None:
        """Believe records at the first look, and remove those that speak of other shards than there are now."""
        first, self._looked = not self._looked, True
        for save, found in saves.items():
            record = records.get(save)
            if first and record is not None and _agrees(record, found.shards, are_shards=True):
                self._recorded[save] = found.shards
                if _agrees(record, found.small, are_shards=False):
                    self._small[save] = found.small
            elif first or self._recorded.get(save, found.shards) != found.shards:
                self._recorded.pop(save, None)
                self._small.pop(save, None)
                with contextlib.suppress(OSError):
                    (self._root / save.record).unlink()

    def _record(self, save: _Save, found: _Found, record: Optional[SaveRecord]) -> Optional[Path]:
        """Write what is due of a save: its record, or the small files of it anew; None if nothing is written."""
        before = self._before.get(save)
        pause = self._not_before.get(save)
        if before is None or before.shards != found.shards:
            return None
        if pause is not None and pause.shards == found.shards and self._timer() < pause.until:
            return None
        steady = {name: state for name, state in found.small.items() if before.small.get(name) == state}
        if save not in self._recorded:
            record = self._digest(save, found.shards)
            if record is None:
                self._pause(save, found.shards)
                return None
        elif record is None or self._small.get(save) == steady:
            return None
        new = replace(record, files=self._with_small(save, record, steady))
        path = None
        if save not in self._recorded or new != record:
            path = self._write(save, found.shards, new)
            if path is None:
                return None
        self._recorded[save], self._small[save] = found.shards, steady
        return path

    def _digest(self, save: _Save, files: _Files) -> Optional[SaveRecord]:
        """None while a shard has no end yet, or changes; a later look tries again."""
        try:
            found = {name: self._file_record(save, name, state) for name, state in sorted(files.items())}
            now = {name: self._state(save, name) for name in files}
        except (OSError, Refused, NoDirectory):
            return None
        if now != files:
            return None
        return SaveRecord(save.step, save.role, save.rank, save.world_size, round(self._clock(), 3), found)

    def _with_small(self, save: _Save, record: SaveRecord, small: _Files) -> Dict[str, FileRecord]:
        """What the record says of shards, as it is, and these small files; of those it knows nothing is read again."""
        files = {name: each for name, each in record.files.items() if SHARD.fullmatch(name)}
        known = self._small.get(save, {})
        for name, state in small.items():
            if name in record.files and known.get(name) == state:
                files[name] = record.files[name]
                continue
            with contextlib.suppress(OSError, Refused):
                found = self._file_record(save, name, state)
                if self._state(save, name) == state:
                    files[name] = found
        return dict(sorted(files.items()))

    def _file_record(self, save: _Save, name: str, state: Tuple[int, float]) -> FileRecord:
        with open_below(self._root, os.path.normpath(f"{save.folder}/{name}")) as file:
            return FileRecord(state[0], self._sha256(name, file))

    def _pause(self, save: _Save, shards: _Files) -> None:
        """Leave a save alone for a while, unless its shards change."""
        self._not_before[save] = _Pause(self._timer() + _TRY_AGAIN_S, shards)

    def _sha256(self, name: str, file: BinaryIO) -> str:
        if SHARD.fullmatch(name):
            return self._digest_of(file.fileno())
        digest = sha256()
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
        return digest.hexdigest()

    def _write(self, save: _Save, shards: _Files, record: SaveRecord) -> Optional[Path]:
        """None where it cannot be written; a later look tries again, and other runs are not kept waiting."""
        try:
            return _write(self._root / save.record, record.to_json())
        except OSError as error:
            self._pause(save, shards)
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


def _by_rank(run: str, step: int, role: Mapping[str, Any]) -> Dict[_Save, _Found]:
    found: Dict[_Save, _Found] = {}
    small: _Files = {}
    for file in role["files"]:
        path, state = file["path"], (file["size_bytes"], file["modified_at"])
        match = SHARD.fullmatch(path)
        if match:
            save = _Save(run, step, role["role"], int(match[2]), int(match[3]))
            found.setdefault(save, _Found({}, {})).shards[path] = state
        elif is_small(path, file["size_bytes"]) and not RECORD.fullmatch(path):
            small[path] = state
    for save, files in found.items():
        files.small.update(small if save.rank == 0 else {})
    return found


def _read_records(values: List[Dict[str, Any]]) -> Iterator[SaveRecord]:
    for value in values:
        with contextlib.suppress(CheckpointError):
            yield SaveRecord.from_json(value)


def _agrees(record: SaveRecord, files: _Files, *, are_shards: bool) -> bool:
    """Whether the record has exactly these shards, or small files, with these sizes, and none was written after it."""
    said = {
        name: each.size_bytes
        for name, each in record.files.items()
        if bool(SHARD.fullmatch(name)) == are_shards
    }
    same = said == {name: size for name, (size, _) in files.items()}
    return same and all(modified_at <= record.recorded_at for _, modified_at in files.values())


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
