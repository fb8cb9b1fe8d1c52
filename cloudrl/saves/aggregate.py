"""Puts together what each node, or one folder of this machine, says of its checkpoints."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from cloudrl.errors import CheckpointError, ConnectionFailed, InputError, Unauthorized
from cloudrl.saves.inventory import Checkpoint, FileCopy, Inventory, Location
from cloudrl.saves.names import DATA, SHARD, TRACKER, model_file, step_folder
from cloudrl.saves.scan import folder_identity, scan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path


def local_inventory(folder: Path) -> Inventory:
    """What lies in a folder of this machine: one with runs, a run, or one step of it.

    Raises:
        InputError: It is no folder, or cannot be read.
    """
    _refuse_unreadable(folder)
    root, only = folder.absolute(), None
    if root.name.startswith("global_step_"):
        root, only = root.parent, root.name
    location = {
        "root": "checkpoints",
        "folder": str(root),
        "identity": folder_identity(root),
        "runs": scan(root),
    }
    found = aggregate([({}, {"locations": [location]})])
    if only is None:
        return found
    steps = tuple(
        each for each in found.checkpoints if each.run == "." and f"global_step_{each.step}" == only
    )
    return Inventory(steps, found.notes)


def _refuse_unreadable(folder: Path) -> None:
    try:
        os.scandir(folder).close()
    except FileNotFoundError:
        raise InputError(f"{folder} is not there") from None
    except NotADirectoryError:
        raise InputError(f"{folder} is no folder") from None
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}") from error


def cluster_inventory(
    nodes: Iterable[Mapping[str, Any]], ask: Callable[[int], Mapping[str, Any]]
) -> Inventory:
    """What the nodes of a cluster have; one that does not answer is told in a note.

    Args:
        nodes: Their rows in the cluster's status.
        ask: Gives the inventory of the node of this rank.

    Raises:
        Unauthorized: The token is refused.
        CheckpointError: A node gives a name that is no path below a folder.
    """
    answers, silent = [], []
    for node in nodes:
        try:
            answers.append((node, ask(int(node["rank"]))))
        except Unauthorized:
            raise
        except (ConnectionFailed, InputError) as failure:
            who = f"node {node['rank']} ({node['ip']})"
            silent.append(f"{who} says nothing of its checkpoints: {failure.message}")
    found = aggregate(answers)
    return Inventory(found.checkpoints, (*silent, *found.notes), tuple(silent))


def aggregate(answers: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Inventory:
    """Put together what nodes say.

    Args:
        answers: (row of the node in the cluster's status, or empty for this machine; its inventory).

    Raises:
        CheckpointError: A node gives a name that is no path below a folder.
    """
    gathered: dict[tuple[str, str], _Run] = {}
    for location, runs in _locations(answers):
        for run in runs:
            name = "." if run["run"] == "." else _checked(location, run["run"])
            gathered.setdefault((location.root, name), _Run(name)).add(location, run)
    checkpoints: list[Checkpoint] = []
    notes: list[str] = []
    for key in sorted(gathered):
        checkpoints += gathered[key].checkpoints()
        notes += gathered[key].notes()
    return Inventory(tuple(checkpoints), tuple(notes))


def _locations(
    answers: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]],
) -> list[tuple[Location, list[Mapping[str, Any]]]]:
    """Every folder once, with all nodes that have it."""
    groups: list[list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = []
    for node, answer in answers:
        for said in answer["locations"]:
            same = next((group for group in groups if _is_same(group[0][1], said)), None)
            if same is None:
                groups.append([(node, said)])
            else:
                same.append((node, said))
    return [(_location(group), list(group[0][1]["runs"])) for group in groups]


def _checked(location: Location, said: object) -> str:
    """A name as a node gives it. A pull makes a path of this machine of it, so it must stay below a folder."""
    name = str(said)
    if not _can_be_a_path(name) or any(part in ("", ".", "..") for part in name.split("/")):
        raise CheckpointError(
            f"{location.label} names {name[:200]!r} among its checkpoints, which is no path below their folder",
            hint="No training writes that: look at that node before you take anything from it",
        )
    return name


def _can_be_a_path(name: str) -> bool:
    try:
        return b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:  # JSON has text that is no text
        return False


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two nodes speak of one folder: one kernel says so, or each sees the marker that the other has left."""
    if one["root"] != other["root"]:
        return False
    if one["identity"] and one["identity"] == other["identity"]:
        return True
    markers = (one.get("marker"), other.get("marker"))
    return all(markers) and markers[1] in one["markers"] and markers[0] in other["markers"]


def _location(group: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Location:
    nodes = [node for node, _ in group if node]
    return Location(
        tuple(int(node["rank"]) for node in nodes),
        tuple(str(node["ip"]) for node in nodes),
        str(group[0][1]["root"]),
        str(group[0][1]["folder"]),
    )


class _Run:
    """One run, while it is put together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._files: dict[tuple[int, str, int | None], dict[str, list[FileCopy]]] = {}
        self._saves: dict[tuple[int, str], list[tuple[Location, Mapping[str, Any]]]] = defaultdict(list)
        self._trackers: list[tuple[float, str, Location]] = []
        self._step_files: dict[int, dict[str, list[FileCopy]]] = defaultdict(dict)

    def add(self, location: Location, run: Mapping[str, Any]) -> None:
        tracker = run["tracker"]
        if tracker is not None:
            self._trackers.append((float(tracker["modified_at"]), str(tracker["text"]), location))
        for step in run["steps"]:
            number = int(step["step"])
            base = step_folder(self.name, number)
            for file in step["files"]:
                path = _checked(location, file["path"])
                self._step_files[number].setdefault(path, []).append(_file_at(location, base, file))
            for role in step["roles"]:
                name = _checked(location, role["role"])
                self._saves[number, name] += [(location, save) for save in role["saves"]]
                self._add_files(location, (number, name), f"{base}/{name}", role["files"])

    def _add_files(
        self, location: Location, of: tuple[int, str], base: str, files: Iterable[Mapping[str, Any]]
    ) -> None:
        for file in files:
            path = _checked(location, file["path"])
            match = SHARD.fullmatch(path)
            key = (*of, int(match[2]) if match else None)
            self._files.setdefault(key, {}).setdefault(path, []).append(_file_at(location, base, file))

    def checkpoints(self) -> list[Checkpoint]:
        """One for each step, role and world size; what is of no world size belongs to all of them."""
        sizes: dict[tuple[int, str], set[int | None]] = defaultdict(set)
        for step, role, world_size in self._files:
            sizes[step, role].add(world_size)
        return [
            self._checkpoint(step, role, world_size)
            for (step, role), found in sorted(sizes.items())
            for world_size in sorted(found - {None}, key=lambda size: size or 0) or [None]
        ]

    def _checkpoint(self, step: int, role: str, world_size: int | None) -> Checkpoint:
        files = _newest_first(
            {**self._files.get((step, role, None), {}), **self._files.get((step, role, world_size), {})}
        )
        resumed, step_files = self._resumed(), self._step_files.get(step, {})
        return Checkpoint(
            run=self.name,
            step=step,
            role=role,
            world_size=world_size,
            files=files,
            saves=self._saves_of(step, role, world_size, files),
            finished=DATA in step_files or (resumed is not None and step <= resumed),
            resumes=step == resumed,
            tracked=any(text == str(step) for _, text, _ in self._trackers),
            step_files=_newest_first(step_files),
            tracker_at=max((at for at, _, _ in self._trackers), default=None),
        )

    def _saves_of(
        self, step: int, role: str, world_size: int | None, files: Mapping[str, Sequence[FileCopy]]
    ) -> dict[int, Mapping[str, Any]]:
        """By rank; of several copies, what was written down where the chosen model file lies."""
        found = {}
        for location, save in self._saves[step, role]:
            rank = save.get("rank")
            if isinstance(rank, int) and save.get("world_size") == world_size:
                copies = files.get(model_file(world_size, rank))
                if copies and copies[0].location == location:
                    found[rank] = save
        return found

    def _resumed(self) -> int | None:
        """The step that the newest tracker names."""
        if not self._trackers:
            return None
        text = max(self._trackers, key=lambda tracker: tracker[0])[1]
        return int(text) if text.isdecimal() and len(text) <= 18 else None

    def notes(self) -> list[str]:
        """What a resume would meet."""
        steps = {step for step, _, _ in self._files}
        if not self._trackers:
            return (
                [f"{self.name}: there is no {TRACKER}, so a resume would start from scratch"] if steps else []
            )
        newest = max(self._trackers, key=lambda tracker: tracker[0])
        found = []
        if self._resumed() is None:
            found.append(
                f"{self.name}: {TRACKER} on {newest[2].label} holds {newest[1]!r}, no step: a resume would fail"
            )
        elif self._resumed() not in steps:
            found.append(f"{self.name}: a resume would look for step {newest[1]}, which is not there")
        others = sorted(
            {f"{text} on {location.label}" for _, text, location in self._trackers if text != newest[1]}
        )
        if others:
            found.append(
                f"{self.name}: trackers differ: {newest[1]} on {newest[2].label}, {', '.join(others)}; a resume takes "
                "that of the node where its driver runs"
            )
        return found


def _file_at(location: Location, base: str, file: Mapping[str, Any]) -> FileCopy:
    return FileCopy(location, f"{base}/{file['path']}", int(file["size_bytes"]), float(file["modified_at"]))


def _newest_first(files: Mapping[str, Sequence[FileCopy]]) -> dict[str, tuple[FileCopy, ...]]:
    return {name: tuple(sorted(files[name], key=lambda copy: -copy.modified_at)) for name in sorted(files)}
