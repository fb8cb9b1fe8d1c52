"""Notices on its node that a rank has finished a save, and records what it consists of (`cloudrl.saves.records`).

verl neither syncs nor renames what it saves, so a file counts as finished when the directory at its end, which torch
writes last, can be read, and no shard of its rank has changed between two looks. When a shard changes, the record
of its rank goes at once: none is better than that of an older save. An empty file tells that there was one, until there
is one again: the step does not count as complete meanwhile. Of a shard only the directory is read, some KB,
which keeps no training waiting.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from cloudrl.errors import CheckpointError
from cloudrl.private_files import write_file
from cloudrl.saves.below import Refused, open_below
from cloudrl.saves.names import SHARD, is_ours, is_small, record_file, step_folder, withdrawn_file
from cloudrl.saves.records import FileRecord, SaveRecord
from cloudrl.saves.scan import scan
from cloudrl.saves.wholeness import Inspector
from cloudrl.saves.zip_directory import NoDirectory, directory_digest

_SCAN_EVERY_S = 5.0
_TRY_AGAIN_S = 60.0
"""After a save that was cut off, or cannot be recorded."""


class _Save(NamedTuple):
    """Whose files: one rank's of one role of one step; `below` is the role's folder there."""

    run: str
    step: int
    role: str
    below: str
    world_size: int
    rank: int

    @property
    def folder(self) -> str:
        return os.path.normpath(f"{step_folder(self.run, self.step)}/{self.below}")

    @property
    def record(self) -> str:
        """Where its record is."""
        return f"{self.folder}/{record_file(self.world_size, self.rank)}"

    @property
    def withdrawn(self) -> str:
        """What tells until there is a record again that there was one."""
        return f"{self.folder}/{withdrawn_file(self.world_size, self.rank)}"


_Files = Dict[str, Tuple[int, float]]
"""Name -> (bytes, time of change)."""


class _Found(NamedTuple):
    """Files of a save. The record stands and falls with the shards; what it says of small ones is kept up to date."""

    shards: _Files
    small: _Files
    """For rank 0, those that belong to no rank."""


@dataclass
class _Known:
    """What is known of a save.

    Attributes:
        seen: its files at the last look; None at the first.
        recorded: the files of which its record speaks; None while there is no record.
        wait_until: by the timer; it is left alone until then, unless its shards change.
    """

    seen: Optional[_Found] = None
    recorded: Optional[_Found] = None
    wait_until: float = 0.0


class SaveRecorder:
    """The saves of one folder; `scan_once` is called again and again.

    A record that is there when its save is seen first is taken as it is while the sizes agree and no file was written
    after it: it is older than whatever else has happened to the files since, and that is its purpose.

    Args:
        root: The folder of checkpoints.
        digest: Of the directory of an open file.
        clock: For the date in the record.
        timer: Seconds that never go back.
        say: Told once of each run whose saves cannot be recorded.
        inspector: Looks into new files at once, so that who asks for an inventory later need not wait for it.
    """

    def __init__(
        self,
        root: Path,
        *,
        digest: Callable[[int], str] = directory_digest,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda _text: None,
        inspector: Optional[Inspector] = None,
    ) -> None:
        self._root, self._digest_of, self._say, self._inspector = root, digest, say, inspector
        self._clock, self._timer = clock, timer
        self._scan_s = 0.0
        self._known: Dict[_Save, _Known] = {}
        self._warned: Set[str] = set()

    @property
    def pause_s(self) -> float:
        """Seconds until the next look; a slow network volume is listed for at most a twentieth of the time."""
        return max(_SCAN_EVERY_S, 19 * self._scan_s)

    def scan_once(self) -> List[Path]:
        """One look; returns the records that it has written."""
        began = self._timer()
        saves, records = self._saves()
        self._scan_s = self._timer() - began
        self._known = {save: self._reconcile(save, files, records.get(save)) for save, files in saves.items()}
        written = []
        for save, files in saves.items():
            history = self._known[save]
            written.append(self._record(save, history, files, records.get(save)))
            history.seen = files
        return [path for path in written if path is not None]

    def reset(self) -> None:
        """Somebody else has looked after the folder: the next look believes the records that it finds."""
        self._known = {}

    def _saves(self) -> Tuple[Dict[_Save, _Found], Dict[_Save, SaveRecord]]:
        """All ranks that have files here, and their records."""
        saves: Dict[_Save, _Found] = {}
        records: Dict[_Save, SaveRecord] = {}
        for run in scan(self._root, inspector=self._inspector):
            for step in run["steps"]:
                for role in step["roles"]:
                    where = (run["run"], step["step"], role["role"], role["folder"])
                    saves.update(_by_rank(*where, role["files"]))
                    for value in role["saves"]:
                        with contextlib.suppress(CheckpointError):
                            record = SaveRecord.from_json(value)
                            records[_Save(*where, record.world_size, record.rank)] = record
        return saves, records

    def _reconcile(self, save: _Save, files: _Found, record: Optional[SaveRecord]) -> _Known:
        """Believe a record that is there at first, and remove one that speaks of other shards than there are now."""
        history = self._known.get(save)
        if history is not None:
            is_stale = history.recorded is not None and history.recorded.shards != files.shards
        else:
            history = _Known()
            is_stale = record is None or not _agrees(record, files.shards, are_shards=True)
            if record is not None and not is_stale:
                is_complete = _agrees(record, files.small, are_shards=False)
                history.recorded = _Found(files.shards, files.small if is_complete else {})
        if is_stale:
            history.recorded = None
            with contextlib.suppress(OSError):
                (self._root / save.record).unlink()
                os.close(
                    os.open(self._root / save.withdrawn, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                )
        return history

    def _record(self, save: _Save, history: _Known, files: _Found, record: Optional[SaveRecord]) -> Optional[Path]:
        """Write what is due of a save: its record, or the small files of it anew; None if nothing is written."""
        before, recorded = history.seen, history.recorded
        if before is None or before.shards != files.shards:
            history.wait_until = 0.0
            return None
        if self._timer() < history.wait_until:
            return None
        steady = {name: state for name, state in files.small.items() if before.small.get(name) == state}
        if recorded is None:
            record = self._digest(save, files.shards)
            if record is None:
                history.wait_until = self._timer() + _TRY_AGAIN_S
                return None
            with contextlib.suppress(OSError):  # the save has an end again, whether or not that can be written down
                (self._root / save.withdrawn).unlink()
        elif record is None or recorded.small == steady:
            return None
        new = replace(record, files=self._with_small(save, record, steady, recorded.small if recorded else {}))
        path = None
        if recorded is None or new != record:
            path = self._write(save, history, new)
            if path is None:
                return None
        history.recorded = _Found(files.shards, steady)
        return path

    def _digest(self, save: _Save, shards: _Files) -> Optional[SaveRecord]:
        """None while a shard has no end yet, or changes; a later look tries again."""
        try:
            files = {name: self._file_record(save, name, state) for name, state in sorted(shards.items())}
            now = {name: self._state(save, name) for name in shards}
        except (OSError, Refused, NoDirectory):
            return None
        if now != shards:
            return None
        return SaveRecord(save.step, save.role, save.rank, save.world_size, round(self._clock(), 3), files)

    def _with_small(self, save: _Save, record: SaveRecord, small: _Files, recorded: _Files) -> Dict[str, FileRecord]:
        """What the record says of shards, as it is, and these small files; of those it knows nothing is read again."""
        files = {name: recorded_file for name, recorded_file in record.files.items() if SHARD.fullmatch(name)}
        for name, state in small.items():
            if name in record.files and recorded.get(name) == state:
                files[name] = record.files[name]
                continue
            with contextlib.suppress(OSError, Refused):
                file_record = self._file_record(save, name, state)
                if self._state(save, name) == state:
                    files[name] = file_record
        return dict(sorted(files.items()))

    def _file_record(self, save: _Save, name: str, state: Tuple[int, float]) -> FileRecord:
        with open_below(self._root, f"{save.folder}/{name}") as file:
            if SHARD.fullmatch(name):
                return FileRecord(state[0], self._digest_of(file.fileno()))
            digest = sha256()
            for piece in iter(lambda: file.read(1 << 20), b""):
                digest.update(piece)
            return FileRecord(state[0], digest.hexdigest())

    def _state(self, save: _Save, name: str) -> Tuple[int, float]:
        info = (self._root / save.folder / name).lstat()
        return info.st_size, info.st_mtime

    def _write(self, save: _Save, history: _Known, record: SaveRecord) -> Optional[Path]:
        """The record appears whole or not at all; None where it does not.

        The step may have been pruned meanwhile. What cannot be written keeps no other run waiting: a later look tries
        again.
        """
        path = self._root / save.record
        try:
            write_file(path, json.dumps(record.to_json(), indent=1) + "\n", mode=0o666)
        except FileNotFoundError:
            return None
        except OSError as error:
            history.wait_until = self._timer() + _TRY_AGAIN_S
            if save.run not in self._warned:
                self._warned.add(save.run)
                where, reason = self._root / save.run, error.strerror or str(error)
                self._say(f"warning: finished saves of {where} cannot be recorded: {reason}")
            return None
        return path


def _by_rank(run: str, step: int, role: str, below: str, files: List[Dict[str, Any]]) -> Dict[_Save, _Found]:
    saves: Dict[_Save, _Found] = {}
    small: _Files = {}
    for file in files:
        path, state = file["path"], (file["size_bytes"], file["modified_at"])
        match = SHARD.fullmatch(path)
        if match:
            save = _Save(run, step, role, below, int(match[2]), int(match[3]))
            saves.setdefault(save, _Found({}, {})).shards[path] = state
        elif is_small(path, file["size_bytes"]) and not is_ours(path):
            small[path] = state
    return {save: of_rank if save.rank else _Found(of_rank.shards, small) for save, of_rank in saves.items()}


def _agrees(record: SaveRecord, files: _Files, *, are_shards: bool) -> bool:
    """Whether the record has exactly these shards, or small files, with these sizes, and none was written after it."""
    recorded = {
        name: file.size_bytes for name, file in record.files.items() if bool(SHARD.fullmatch(name)) == are_shards
    }
    same = recorded == {name: size for name, (size, _) in files.items()}
    return same and all(modified_at <= record.recorded_at for _, modified_at in files.values())
