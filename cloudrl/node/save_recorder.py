"""Notices on its node that a rank has finished a save, and writes down what it consists of.

Beside the shards, one file for each rank and world size, `cloudrl_save_world_size_2_rank_0.json`::

    {"format": 1, "step": 10, "role": "actor", "rank": 0, "world_size": 2, "recorded_at": 1789.0,
     "files": {"model_world_size_2_rank_0.pt": {"size_bytes": 123, "crc32": 456}, ...}}

What is copied, mixed or rots later no longer agrees with it. verl neither syncs nor renames what it saves, so a file
counts as finished when its zip directory, which is written last, can be read and nothing of its rank has changed
between two looks. When anything of a rank changes, its record goes at once: none is better than that of an older save.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import zipfile
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

from cloudrl.node.files import Refused, open_below
from cloudrl.node.inventory import SHARD, scan
from cloudrl.node.shard_worker_client import ShardWorkerFailed

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = 1
_LOOK_EVERY_S = 5.0
_WRITE_AGAIN_S = 60.0
_SUM_FOR_S = 30.0
"""Sums of a step of 84 GB take 7 minutes, with 2 processors half an hour: after so long it is looked again whether the
files are still the same."""


class _Group(NamedTuple):
    """The files of one rank at one step."""

    run: str
    step: int
    role: str
    world_size: int
    rank: int

    @property
    def folder(self) -> str:
        return os.path.join(self.run, f"global_step_{self.step}", self.role)  # noqa: PTH118

    @property
    def name(self) -> str:
        return f"cloudrl_save_world_size_{self.world_size}_rank_{self.rank}.json"


_Files = Dict[str, Tuple[int, float]]
"""Name -> (bytes, time of change)."""


class SaveRecorder:
    """The saves of one folder; `look` is called again and again.

    A record that was there before this object is taken as it is while the sizes agree and no file was written after
    it: it is older than whatever else has happened to the files since, and that is its purpose.

    Args:
        root: The folder of checkpoints.
        crc32: {"size_bytes", "crc32"} of an open file.
        clock: For the date in the record.
        timer: Seconds that never go back.
        say: Told once of each run whose saves cannot be written down.

    Attributes:
        scan_s: How long the last look has taken to list the folder, without any sum.
        is_behind: Whether the last look has left sums to the next one.
    """

    def __init__(
        self,
        root: Path,
        crc32: Callable[[BinaryIO], Mapping[str, int]],
        *,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._root, self._crc32, self._clock, self._timer, self._say = root, crc32, clock, timer, say
        self.scan_s, self.is_behind = 0.0, False
        self._sum_until = 0.0
        self._before: Dict[_Group, _Files] = {}
        self._recorded: Dict[_Group, _Files] = {}
        self._sums: Dict[Tuple[_Group, str], Tuple[Tuple[int, float], Dict[str, int]]] = {}
        self._not_before: Dict[_Group, float] = {}
        self._told: Set[str] = set()
        self._looked = False

    def scan_once(self) -> List[Path]:
        """One look; returns the records that it has written."""
        began = self._timer()
        groups, known = self._groups()
        self.scan_s = self._timer() - began
        self._reconcile(groups, known)
        self.is_behind, self._sum_until = False, self._timer() + _SUM_FOR_S
        try:
            return self._record_all(groups)
        finally:
            self._before = groups
            self._forget(groups)

    def reset(self) -> None:
        """Somebody else has looked after the folder: the next look believes the records that it finds."""
        self._before, self._recorded, self._looked = {}, {}, False

    def _record_all(self, groups: Mapping[_Group, _Files]) -> List[Path]:
        written = []
        for group, files in groups.items():
            if self._is_due(group, files) and all(self._is_whole(group, name) for name in files):
                record = self._record(group, files)
                if record is not None:
                    written.append(record)
                    self._recorded[group] = files
        return written

    def _reconcile(self, groups: Mapping[_Group, _Files], known: Set[_Group]) -> None:
        """Believe records at the first look, and remove those that speak of other files than there are now."""
        first, self._looked = not self._looked, True
        for group, files in groups.items():
            if first and group in known:
                self._recorded[group] = files
            elif first or self._recorded.get(group, files) != files:
                self._recorded.pop(group, None)
                with contextlib.suppress(OSError):
                    (self._root / group.folder / group.name).unlink()

    def _groups(self) -> Tuple[Dict[_Group, _Files], Set[_Group]]:
        """All ranks that have files here, and those of them whose record speaks of the same files."""
        groups: Dict[_Group, _Files] = {}
        known: Set[_Group] = set()
        for run in scan(self._root):
            for step in run["steps"]:
                for role in step["roles"]:
                    found = _by_rank(run["run"], step["step"], role)
                    groups.update(found)
                    known |= {group for group, files in found.items() if _agrees(role["saves"], group, files)}
        return groups, known

    def _is_due(self, group: _Group, files: _Files) -> bool:
        steady = self._before.get(group) == files and group not in self._recorded
        return steady and self._timer() >= self._not_before.get(group, 0.0)

    def _is_whole(self, group: _Group, name: str) -> bool:
        try:
            with self._open(group, name) as file, zipfile.ZipFile(file) as archive:
                return bool(archive.infolist())
        except (OSError, Refused, zipfile.BadZipFile, ValueError, NotImplementedError):
            return False

    def _record(self, group: _Group, files: _Files) -> Optional[Path]:
        began = self._timer()
        try:
            sums = self._sum_all(group, files)
            now = {name: self._state(group, name) for name in files}
        except (
            OSError,
            Refused,
            ShardWorkerFailed,
        ):  # the next look tries again, or a later one if this took long
            spent_s = self._timer() - began
            self._not_before[group] = began + (20 * spent_s if spent_s > 1 else 0.0)
            self._sum_until += spent_s
            return None
        if sums is None or now != files:
            return None
        if any(each["size_bytes"] != files[name][0] for name, each in sums.items()):
            return None
        value = {
            "format": FORMAT, "step": group.step, "role": group.role, "rank": group.rank,
            "world_size": group.world_size, "recorded_at": round(self._clock(), 3), "files": sums,
        }  # fmt: skip
        return self._keep(group, value)

    def _keep(self, group: _Group, value: Mapping[str, Any]) -> Optional[Path]:
        """None where it cannot be written; a later look tries again, and other runs are not kept waiting."""
        try:
            return _write(self._root / group.folder / group.name, value)
        except OSError as error:
            self._not_before[group] = self._timer() + _WRITE_AGAIN_S
            if group.run not in self._told:
                self._told.add(group.run)
                where, reason = self._root / group.run, error.strerror or str(error)
                self._say(f"warning: finished saves of {where} cannot be written down: {reason}")
            return None

    def _sum_all(self, group: _Group, files: _Files) -> Optional[Dict[str, Dict[str, int]]]:
        """None when time is up; the next look goes on where this one stops."""
        sums = {}
        for name, state in sorted(files.items()):
            if self._timer() > self._sum_until:
                self.is_behind = True
                return None
            sums[name] = self._sum(group, name, state)
        return sums

    def _state(self, group: _Group, name: str) -> Tuple[int, float]:
        info = (self._root / group.folder / name).lstat()
        return info.st_size, info.st_mtime

    def _sum(self, group: _Group, name: str, state: Tuple[int, float]) -> Dict[str, int]:
        """Size and CRC-32, calculated once for each state of a file."""
        kept = self._sums.get((group, name))
        if kept is None or kept[0] != state:
            with self._open(group, name) as file:
                kept = self._sums[group, name] = (state, dict(self._crc32(file)))
        return kept[1]

    def _open(self, group: _Group, name: str) -> BinaryIO:
        return open_below(self._root, os.path.normpath(f"{group.folder}/{name}"))

    def _forget(self, groups: Mapping[_Group, _Files]) -> None:
        """What was pruned."""
        self._recorded = {group: files for group, files in self._recorded.items() if group in groups}
        self._not_before = {group: at for group, at in self._not_before.items() if group in groups}
        self._sums = {key: value for key, value in self._sums.items() if key[0] in groups}


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
        return max(0.0 if self._saves.is_behind else self._every_s, 19 * self._saves.scan_s)

    def _look(self) -> None:
        if self._is_mine():
            self._saves.scan_once()
        else:
            self._saves.reset()


def _by_rank(run: str, step: int, role: Mapping[str, Any]) -> Dict[_Group, _Files]:
    found: Dict[_Group, _Files] = {}
    for file in role["files"]:
        match = SHARD.fullmatch(file["path"])
        if match:
            group = _Group(run, step, role["role"], int(match[2]), int(match[3]))
            found.setdefault(group, {})[file["path"]] = (file["size_bytes"], file["modified_at"])
    return found


def _agrees(saves: List[Dict[str, Any]], group: _Group, files: _Files) -> bool:
    """Whether there is a record of exactly these files with these sizes, and none was written after it."""
    for save in saves:
        if (save.get("world_size"), save.get("rank")) == (group.world_size, group.rank):
            said, recorded_at = save.get("files"), save.get("recorded_at")
            if not isinstance(said, dict) or not isinstance(recorded_at, (int, float)):
                return False
            sizes = {name: each.get("size_bytes") for name, each in said.items() if isinstance(each, dict)}
            same = sizes == {name: size for name, (size, _) in files.items()}
            return same and all(modified_at <= recorded_at for _, modified_at in files.values())
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
