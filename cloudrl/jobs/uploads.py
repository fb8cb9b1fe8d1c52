"""The user's own files: found, looked at, and where they come to lie on the nodes.

Small ones travel in the job's Ray package and are named relative to the job's working directory, which is the
package on every node, for the entry point and for every actor (verified with Ray 2.60; verl's Hydra does not change
the directory). Larger ones go through the agents and lie below the same absolute path on every node. Both places are
named after the content, so nothing is sent twice and a run that is continued finds the same names.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from cloudrl.errors import InputError
from cloudrl.jobs.code_check import check_code
from cloudrl.jobs.defaults import PACKAGE_FOLDER
from cloudrl.jobs.local_paths import LocalPath, each_once, find, is_list, items
from cloudrl.jobs.overrides import parse_overrides
from cloudrl.jobs.working_dir import Entry, check_size, scan
from cloudrl.node.manifest import Manifest, Part
from cloudrl.node.uploads import size_text
from cloudrl.spec.hydra import HydraText, hydra_text, split_key
from cloudrl.verl.path_keys import REWARD_FUNCTION, REWARD_NAME, PathKind, name_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from cloudrl.jobs.working_dir import DirectoryListing
    from cloudrl.spec import Job
    from cloudrl.spec.shape import ClusterShape

SMALL_BYTES = 10 * 2**20
"""What is larger goes through the agents where there are some: a package is sent again whenever a line of code in
it has changed."""
_READ_BYTES = 2**20


@dataclass(frozen=True)
class UploadItem:
    """One file or folder that is sent with the job."""

    text: str
    """As the user wrote it."""
    to: str
    """On the nodes: relative to the job's working directory in a package, absolute through the agents."""
    by: Literal["package", "agents"]
    entries: tuple[Entry, ...]
    """Names start with the name of the file or folder."""
    manifest: Manifest

    @property
    def size_bytes(self) -> int:
        """All its files together."""
        return self.manifest.size_bytes

    @property
    def packed(self) -> tuple[Entry, ...]:
        """What it adds to the package."""
        folder = self.to.rsplit("/", 1)[0]
        return tuple(
            replace(entry, name=f"{folder}/{entry.name}") for entry in self.entries if self.by == "package"
        )


@dataclass(frozen=True)
class UploadPlan:
    """All that goes along, and the overrides that name it."""

    items: tuple[UploadItem, ...] = ()
    overrides: tuple[tuple[str, HydraText], ...] = ()
    """Those that name a path of this machine, with the path on the nodes in its place."""
    notes: tuple[str, ...] = ()

    @property
    def packed(self) -> tuple[Entry, ...]:
        """What it adds to the package, in an order that depends on nothing but content and names."""
        return tuple(
            sorted((entry for item in self.items for entry in item.packed), key=lambda each: each.name)
        )


@dataclass(frozen=True)
class _ScannedPath:
    local: LocalPath
    entries: tuple[Entry, ...]

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)


def validate_uploads(
    job: Job,
    *,
    here: Path,
    working_dir: DirectoryListing | None,
    remote_working_dir: bool,
    nodes_are_here: bool,
) -> None:
    """What `plan_uploads` refuses, before there is a cluster; no file but Python code is read.

    Raises:
        InputError: A path does not exist, Python code is not what verl needs, or the working directory is too large.
    """
    found = find(
        job.overrides, here=here, working_dir=working_dir, remote_working_dir=remote_working_dir,
        nodes_are_here=nodes_are_here,
    )  # fmt: skip
    inside = _inside(found.paths, working_dir)
    _check_all_code(found.paths, job.overrides, working_dir, inside)
    for path, each in each_once(found.paths).items():
        if path not in inside:
            _scan_path(each)
    if working_dir is not None:
        check_size(working_dir)


def plan_uploads(
    job: Job,
    cluster: ClusterShape,
    *,
    here: Path,
    working_dir: DirectoryListing | None = None,
    remote_working_dir: bool = False,
    limit_bytes: int,
    on_read: Callable[[str, int], None] = lambda _text, _size: None,
) -> UploadPlan:
    """Find a job's files on this machine and decide how they travel. Sizes are known before anything is read.

    Args:
        job: With the user's overrides in it.
        cluster: Where it goes.
        here: What relative paths start from.
        working_dir: The folder that is sent along; what lies in there travels with it.
        remote_working_dir: It comes from a URL, and nothing can be added to it.
        limit_bytes: The most that a package may hold.
        on_read: Called with each path, and its size, before it is read.

    Raises:
        InputError: A path does not exist, Python code is not what verl needs, or there is no way for something large.
    """
    found = find(
        job.overrides, here=here, working_dir=working_dir, remote_working_dir=remote_working_dir,
        nodes_are_here=cluster.provider == "local",
    )  # fmt: skip
    inside = _inside(found.paths, working_dir)
    _check_all_code(found.paths, job.overrides, working_dir, inside)
    outside = [each for path, each in each_once(found.paths).items() if path not in inside]
    scanned = [_scan_path(each) for each in outside]
    remaining = None if remote_working_dir else limit_bytes - (working_dir.size_bytes if working_dir else 0)
    by_agents = _too_large_for_the_package(scanned, cluster, remaining)
    made = {}
    for each in scanned:
        on_read(each.local.text, each.size_bytes)
        made[each.local.path] = _item(each, cluster, by_agents=each.local.path in by_agents)
    places = {**inside, **{path: item.to for path, item in made.items()}}
    overrides = _rewritten(job.overrides, found.paths, places)
    return UploadPlan(tuple(made.values()), tuple(overrides.items()), found.notes)


def _inside(paths: Iterable[LocalPath], working_dir: DirectoryListing | None) -> dict[Path, str]:
    """Those that travel with the working directory, by their names in it."""
    return {each.path: name for each in paths if (name := _name_in(working_dir, each.path)) is not None}


def _name_in(working_dir: DirectoryListing | None, path: Path) -> str | None:
    """The path below the working directory of what is in it and travels with it as a whole."""
    if working_dir is None or not path.resolve().is_relative_to(working_dir.folder.resolve()):
        return None
    name = path.resolve().relative_to(working_dir.folder.resolve()).as_posix()
    travelling = {entry.name for entry in working_dir.entries}
    if path.is_file():
        return name if name in travelling else None
    wanted = {f"{name}/{entry.name}" for entry in scan(path, what=str(path)).entries}
    return name if wanted and wanted <= travelling else None


def _check_all_code(
    paths: Iterable[LocalPath],
    overrides: Mapping[str, str],
    working_dir: DirectoryListing | None,
    inside: Mapping[Path, str],
) -> None:
    given = parse_overrides(overrides)
    for each in paths:
        name = name_key(split_key(each.key)[1])
        if each.kind is PathKind.CODE and name is not None:
            wanted = given.get(name) or (REWARD_FUNCTION if name == REWARD_NAME else None)
            root = working_dir.folder if working_dir is not None and each.path in inside else None
            check_code(each.path, wanted, said=f"{each.key}={each.text}", root=root)


def _scan_path(each: LocalPath) -> _ScannedPath:
    if each.path.is_dir():
        entries = scan(each.path, what=f"{each.key}={each.text}").entries
        named = [
            replace(entry, name=f"{each.path.name}/{entry.name}")
            for entry in entries
            if entry.name[-1] != "/"
        ]
        if not named:
            raise InputError(f"{each.key}={each.text} is an empty folder")
    else:
        found = each.path.stat()
        named = [Entry(each.path.name, each.path, found.st_size, found.st_mode)]
    return _ScannedPath(each, tuple(sorted(named, key=lambda entry: entry.name)))


def _too_large_for_the_package(
    scanned: list[_ScannedPath], cluster: ClusterShape, remaining_bytes: int | None
) -> set[Path]:
    """Those that have to go through the agents, the largest first."""
    agents = cluster.files_dir is not None
    chosen = {
        each.local.path
        for each in scanned
        if agents and (remaining_bytes is None or each.size_bytes > SMALL_BYTES)
    }
    kept = sorted(
        (each for each in scanned if each.local.path not in chosen), key=lambda each: each.size_bytes
    )
    while kept and (remaining_bytes is None or sum(each.size_bytes for each in kept) > remaining_bytes):
        largest = kept.pop()
        if not agents:
            raise _no_way(largest, cluster, remaining_bytes)
        chosen.add(largest.local.path)
    return chosen


def _no_way(each: _ScannedPath, cluster: ClusterShape, remaining_bytes: int | None) -> InputError:
    said = f"{each.local.key}={each.local.text} has {size_text(each.size_bytes)}"
    if remaining_bytes is None:
        reason = "the working directory is a URL, to which nothing can be added"
    else:
        reason = f"Ray's package has room for {size_text(max(0, remaining_bytes))} of the job's own files"
    return InputError(
        f"{said}; {reason}, and what answers at {cluster.name!r} is a plain Ray cluster without agents that "
        "could take it",
        hint="Copy it to the same place on every node and give that absolute path, or a model on the Hub, or use a "
        "cluster that cloudrl has started",
    )


def _item(each: _ScannedPath, cluster: ClusterShape, *, by_agents: bool) -> UploadItem:
    manifest = _manifest(each)
    name = each.local.path.name
    if by_agents:
        return UploadItem(
            each.local.text,
            f"{cluster.files_dir}/{manifest.address}/{name}",
            "agents",
            each.entries,
            manifest,
        )
    to = f"{PACKAGE_FOLDER}/{manifest.address[:8]}/{name}"
    return UploadItem(each.local.text, to, "package", each.entries, manifest)


def _manifest(each: _ScannedPath) -> Manifest:
    said = f"{each.local.key}={each.local.text}"
    try:
        parts = tuple(
            Part(entry.name, entry.path.stat().st_size, _sha256(entry.path)) for entry in each.entries
        )
        return Manifest.from_json(Manifest(parts).to_json())
    except (OSError, ValueError) as failure:
        raise InputError(f"{said} cannot be sent: {failure}") from failure


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _rewritten(
    overrides: Mapping[str, str], paths: Iterable[LocalPath], places: Mapping[Path, str]
) -> dict[str, HydraText]:
    by_key: dict[str, dict[str, str]] = {}
    for each in paths:
        by_key.setdefault(each.key, {})[each.text] = places[each.path]
    made = {}
    for key, moved in by_key.items():
        texts = [moved.get(text, text) for text in items(overrides[key])]
        made[key] = hydra_text(texts if is_list(overrides[key]) else texts[0])
    return made
