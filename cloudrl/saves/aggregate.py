"""Puts together what each node, or one folder of this machine, says of its checkpoints."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from cloudrl.errors import CheckpointError, InputError
from cloudrl.protocol.ranks import names_text
from cloudrl.protocol.report import NodeReport
from cloudrl.protocol.routes import CHECKPOINTS
from cloudrl.saves.damage import damage_notes
from cloudrl.saves.inventory import CLOCKS_S, Checkpoint, Inventory
from cloudrl.saves.megatron_layout import find_weights
from cloudrl.saves.names import SHARD, STEP, TRACKER, find_data, of_run, record_file, shard_file, step_folder
from cloudrl.saves.places import FileCopy, Location, nodes_text
from cloudrl.saves.records import SaveRecord
from cloudrl.saves.scan import folder_identity, scan, scan_only_role
from cloudrl.saves.wholeness import Inspector, read_parts

_Copied = Mapping[str, Tuple[FileCopy, ...]]
_Answer = Tuple[Optional[NodeReport], Mapping[str, Any]]


def local_inventory(folder: Path) -> Inventory:
    """What is in a folder of this machine: one with runs, a run, one step, or one role of a step.

    Links in it are followed. A step or a role that is named by its folder is taken as it is, finished or not. The
    folder of a role that is in no step is of the step that its records name, else of step 0.

    Raises:
        InputError: It is not a folder, or cannot be read.
    """
    try:
        os.scandir(folder).close()
    except OSError as error:
        raise InputError(
            f"{folder} cannot be read: {error.strerror}", hint=f"ls {shlex.quote(str(folder.parent))}"
        ) from error
    root = folder.absolute()
    named = (path for path in (root, root.resolve()) if STEP.fullmatch(path.name) or STEP.fullmatch(path.parent.name))
    root = next(named, root)
    if STEP.fullmatch(root.name):
        return _of_step(_local(root.parent), root.name)
    with_steps = _local(root)
    role = scan_only_role(root, follow_links=True, inspector=Inspector(follow_links=True))
    # beside steps, a folder such as huggingface/ has a model of the user's
    if with_steps.checkpoints or (not find_weights([file["path"] for file in role["files"]]) and not _has_shards(role)):
        return with_steps
    if STEP.fullmatch(root.parent.name):
        inventory = _of_step(_local(root.parent.parent), root.parent.name)
        mine = tuple(checkpoint for checkpoint in inventory.checkpoints if checkpoint.role == root.name)
        return replace(inventory, checkpoints=mine, is_role=True)
    numbers = {int(save["step"]) for save in role["saves"] if str(save.get("step", "")).isdecimal()}
    step = {"step": numbers.pop() if len(numbers) == 1 else 0, "folder": "", "files": [], "roles": [role]}
    inventory = _local(root, [{"run": ".", "tracker": None, "steps": [step]}])
    return replace(inventory, notes=(), is_step=True, is_role=True)


def _local(root: Path, runs: list[dict[str, Any]] | None = None) -> Inventory:
    saved_runs = scan(root, follow_links=True, inspector=Inspector(follow_links=True)) if runs is None else runs
    location = {"root": CHECKPOINTS, "folder": str(root), "identity": folder_identity(root), "runs": saved_runs}
    return aggregate([(None, {"locations": [location]})])


def _of_step(inventory: Inventory, name: str) -> Inventory:
    steps = tuple(
        checkpoint
        for checkpoint in inventory.checkpoints
        if checkpoint.run == "." and step_folder(".", checkpoint.step) == name
    )
    return Inventory(steps, inventory.notes, is_step=True)


def _has_shards(role: Mapping[str, Any]) -> bool:
    return any(SHARD.fullmatch(file["path"]) for file in role["files"])


def aggregate(answers: Iterable[_Answer]) -> Inventory:
    """Put together what nodes say.

    Args:
        answers: (a node, None for this machine; its inventory).

    Raises:
        CheckpointError: A node gives a name that is not a path below a folder.
    """
    by_run: dict[tuple[str, str], _Run] = {}
    for location, runs in _locations(answers):
        for run in runs:
            name = "." if run["run"] == "." else _checked(location, run["run"])
            by_run.setdefault((location.root, name), _Run(name)).add(location, run)
    checkpoints: list[Checkpoint] = []
    notes: list[str] = []
    for key in sorted(by_run):
        steps = by_run[key].checkpoints()
        checkpoints += steps
        notes += (*by_run[key].notes(), *damage_notes(steps))
    return Inventory(tuple(checkpoints), tuple(notes))


def _locations(answers: Iterable[_Answer]) -> list[tuple[Location, list[Mapping[str, Any]]]]:
    """Every folder once, with all nodes that have it."""
    locations = [(node, folder) for node, answer in answers for folder in answer["locations"]]
    groups: list[tuple[Mapping[str, Any], list[NodeReport]]] = []
    # who has listed it comes first
    for node, folder in sorted(locations, key=lambda located: "runs" not in located[1]):
        nodes = next((nodes for first, nodes in groups if is_same(first, folder)), None)
        if nodes is None:
            if "runs" not in folder:
                continue
            nodes = []
            groups.append((folder, nodes))
        if node is not None:
            nodes.append(node)
    listed = []
    for first, nodes in groups:
        nodes.sort(key=lambda node: node.rank)
        ranks, addresses = tuple(node.rank for node in nodes), tuple(node.ip for node in nodes)
        listed.append((Location(ranks, addresses, str(first["root"]), str(first["folder"])), list(first["runs"])))
    return listed


def _checked(location: Location, value: object) -> str:
    """A name as a node gives it. A pull makes a path of this machine of it, so it must stay below a folder."""
    name = str(value)
    if not _can_be_a_path(name) or any(part in ("", ".", "..") for part in name.split("/")):
        raise CheckpointError(
            f"{location.label} names {name[:200]!r} among its checkpoints, which is not a path below their folder",
            hint="No training writes that: look at that node before you take anything from it",
        )
    return name


def _folder(answer: Mapping[str, Any], usual: str) -> str:
    """Where a step is, below its location, or a role, below its step: as usual, or in that folder itself."""
    return "" if answer.get("folder") == "" else usual


def _can_be_a_path(name: str) -> bool:
    try:
        return b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:  # JSON may hold half a surrogate pair
        return False


def is_same(listed: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two nodes have one folder, listed by one of them: one kernel says so, or each sees the other's marker.

    The other node has listed it as well, or has named in `same_as` the marker that it found there.
    """
    if listed["root"] != other["root"]:
        return False
    if listed["identity"] and listed["identity"] == other["identity"]:
        return True
    mine, theirs = listed.get("marker"), other.get("marker")
    seen = other["markers"] if "runs" in other else [other["same_as"]["marker"]]
    return bool(mine and theirs) and mine in seen and theirs in listed["markers"]


class _Tracker(NamedTuple):
    """verl's word of the step that is complete, on one node."""

    written_at: float
    text: str
    location: Location

    @property
    def step(self) -> int | None:
        """None for what is not a step."""
        return int(self.text) if self.text.isdecimal() and len(self.text) <= 18 else None


def _by_age(copies: Iterable[FileCopy]) -> tuple[FileCopy, ...]:
    """The newest first; before a damaged one a whole one of the same save."""
    newest, *others = sorted(copies, key=lambda copy: -copy.modified_at)
    if newest.damage:
        whole = (other for other in others if not other.damage and newest.modified_at - other.modified_at <= CLOCKS_S)
        if (chosen := next(whole, None)) is not None:
            return (chosen, newest, *(other for other in others if other is not chosen))
    return (newest, *others)


def _is_of_earlier_save(record: SaveRecord, files: _Copied, step_files: _Copied) -> bool:
    """Whether a rank was saved again since, to the end, while no agent looked after the folder.

    The date of the record's own file is compared: a copy of the folder may have given all of them new dates.
    """
    data, own = find_data(step_files), files.get(record_file(record.world_size, record.rank))
    shards = [files[name][0].modified_at for name in record.files if SHARD.fullmatch(name) and name in files]
    if data is None or own is None or not shards:
        return False
    is_newer = min(shards) - own[0].modified_at > CLOCKS_S
    return is_newer and step_files[data][0].modified_at >= max(shards) - CLOCKS_S


_Parts = Tuple[float, Tuple[str, ...]]
_Copies = Dict[str, List[FileCopy]]
_Key = Tuple[int, Optional[str], Optional[int]]
"""Step, role and world size; None where a file belongs to no role, or to no rank."""


class _Run:
    """One run, while it is put together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._files: dict[_Key, _Copies] = defaultdict(lambda: defaultdict(list))
        self._records: dict[tuple[int, str], list[tuple[Location, SaveRecord]]] = defaultdict(list)
        self._trackers: list[_Tracker] = []
        self._links: set[int] = set()
        self._parts: dict[tuple[int, str | None], dict[str, list[_Parts]]] = defaultdict(lambda: defaultdict(list))

    def add(self, location: Location, run: Mapping[str, Any]) -> None:
        tracker = run["tracker"]
        if tracker is not None:
            self._trackers.append(_Tracker(float(tracker["modified_at"]), str(tracker["text"]), location))
        for step in run["steps"]:
            number = int(step["step"])
            if step.get("is_link"):
                self._links.add(number)
            base = _folder(step, step_folder(self.name, number))
            for file in step["files"]:
                self._add_file((number, None, None), location, base, file)
            for role in step["roles"]:
                name = _checked(location, role["role"])
                for file in role["files"]:
                    match = SHARD.fullmatch(str(file["path"]))
                    key = (number, name, int(match[2]) if match else None)
                    self._add_file(key, location, f"{base}/{_folder(role, name)}", file)
                for value in role["saves"]:
                    with contextlib.suppress(CheckpointError):  # one that cannot be read is as good as none
                        self._records[number, name].append((location, SaveRecord.from_json(value)))

    def _add_file(self, key: _Key, location: Location, base: str, file: Mapping[str, Any]) -> None:
        path = _checked(location, file["path"])
        whole = "/".join(part for part in (*base.split("/"), path) if part)
        damage = str(file.get("damage") or "")  # agents of earlier releases do not look into files
        self._files[key][path].append(
            FileCopy(location, whole, int(file["size_bytes"]), float(file["modified_at"]), damage)
        )
        if file.get("parts"):
            self._parts[key[:2]][path].append((float(file["modified_at"]), read_parts(file["parts"])))

    def checkpoints(self) -> list[Checkpoint]:
        """One for each step, role and world size; what is of no world size belongs to all of them."""
        sizes: dict[tuple[int, str], set[int | None]] = defaultdict(set)
        for step, role, world_size in self._files:
            if role is not None:
                sizes[step, role].add(world_size)
        return [
            self._checkpoint(step, role, world_size)
            for (step, role), role_sizes in sorted(sizes.items())
            for world_size in sorted(role_sizes - {None}, key=lambda size: size or 0) or [None]
        ]

    def _checkpoint(self, step: int, role: str, world_size: int | None) -> Checkpoint:
        files = self._newest_first((step, role, None), (step, role, world_size))
        step_files, newest = self._newest_first((step, None, None)), self._newest_tracker()
        resumed = newest.step if newest else None
        records = {
            record.rank: record
            for location, record in self._records.get((step, role), ())
            # of several copies, the record where the chosen model file is
            for copy in files.get(shard_file("model", world_size, record.rank), ())[:1]
            if record.world_size == world_size and copy.location == location
            if not _is_of_earlier_save(record, files, step_files)
        }
        return Checkpoint(
            self.name, step, role, world_size, files, records,
            finished=find_data(step_files) is not None or (resumed is not None and step <= resumed),
            resumes=step == resumed,
            tracked=any(tracker.text == str(step) for tracker in self._trackers),
            step_files=step_files,
            tracker_at=newest.written_at if newest else None,
            is_link=step in self._links,
            parts={path: max(reported)[1] for path, reported in self._parts.get((step, role), {}).items()},
        )  # fmt: skip

    def _newest_first(self, *keys: _Key) -> dict[str, tuple[FileCopy, ...]]:
        files = {name: copies for key in keys for name, copies in self._files.get(key, {}).items()}
        return {name: _by_age(files[name]) for name in sorted(files)}

    def _newest_tracker(self) -> _Tracker | None:
        """The one that counts."""
        return max(self._trackers, key=lambda tracker: tracker.written_at, default=None)

    def notes(self) -> Iterator[str]:
        """What a resume would meet."""
        begin = of_run(self.name)
        steps, newest = {step for step, role, _ in self._files if role is not None}, self._newest_tracker()
        if newest is None:
            if steps:
                yield f"{begin}there is no {TRACKER}, so a resume would start from scratch"
            return
        if newest.step is None:
            where = f"{TRACKER} on {newest.location.label}"
            yield f"{begin}{where} holds {newest.text!r}, no step: a resume would fail"
        elif newest.step not in steps:
            yield f"{begin}a resume would look for step {newest.text}, which is not there"
        others: dict[str, list[Location]] = {}
        for tracker in self._trackers:
            if tracker.text != newest.text:
                others.setdefault(tracker.text, []).append(tracker.location)
        if others:
            elsewhere = [f"{text} on {_label(places)}" for text, places in sorted(others.items())]
            listed = names_text([f"{newest.text} on {newest.location.label}", *elsewhere])
            yield f"{begin}trackers differ: {listed}; a resume takes that of the node where its driver runs"


def _label(locations: Sequence[Location]) -> str:
    return locations[0].label if len(locations) == 1 else nodes_text(locations)
