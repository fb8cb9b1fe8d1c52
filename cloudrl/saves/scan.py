"""What is in a folder of checkpoints: runs, their steps, the roles of each, and the files of each role.

The layout is verl's (`cloudrl.saves.names`). Without an `Inspector` nothing of a checkpoint is opened but its tracker
and the records of its saves.
"""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from cloudrl.saves.megatron_layout import FOLDERS, MANIFEST
from cloudrl.saves.names import OF_LOADER, OURS, RECORD, ROLES, SHARD, STEP, TRACKER, is_ours
from cloudrl.saves.wholeness import Inspector, LookedAt

IN_WORKING_DIR = re.compile(r"session_[^/]+/runtime_resources/working_dir_files/[^/]+/checkpoints(/.*)?", re.DOTALL)
"""Below Ray's folder: where a job with a relative `trainer.default_local_dir` has left its checkpoints."""
_DEPTH = 12
_SMALL_BYTES = 1 << 20


def scan(root: Path, *, follow_links: bool = False, inspector: Optional[Inspector] = None) -> List[Dict[str, Any]]:
    """All runs below a folder, in the order of their paths.

    Args:
        root: The folder.
        follow_links: Whether steps, and what is in them, may be links: on a user's own machine, where all that can be
            reached is the user's. Links to runs are not followed: these would be listed twice.
        inspector: Looks into the files; without it nothing is said of what is in them.

    Returns:
        [{"run": path below `root`, "tracker": {"text", "modified_at"} or None, "steps": [{"step", "is_link", "files",
        "roles": [{"role", "folder", "files", "saves"}]}]}]; `folder` is the role's below the step, "" for the step's
        own; `files` are {"path", "size_bytes", "modified_at"}, paths relative to step or role, "damage" besides for one
        that is not whole, and "parts" for `.metadata` (`cloudrl.saves.wholeness`); `saves` are its records of saves;
        only with `follow_links` a step may be a link.
    """
    look = _Look(follow_links, [])
    runs = sorted((_run(root, folder, look) for folder in _runs(root)), key=lambda run: str(run["run"]))
    _add_evidence(look, inspector)
    return runs


def scan_working_dirs(ray_root: Path, *, inspector: Optional[Inspector] = None) -> List[Dict[str, Any]]:
    """The same of what earlier jobs have left in their working directories below Ray's folder."""
    runs = []
    for folder in sorted(ray_root.glob("session_*/runtime_resources/working_dir_files/*/checkpoints")):
        if IN_WORKING_DIR.fullmatch(str(folder.relative_to(ray_root))) and not _passes_a_link(ray_root, folder):
            prefix = folder.relative_to(ray_root)
            runs += [{**run, "run": str(prefix / run["run"])} for run in scan(folder, inspector=inspector)]
    return runs


def folder_identity(folder: Path) -> str:
    """The same text for the same folder within one kernel, also from two containers; "" if absent."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        info = folder.stat()
    except OSError:
        return ""
    return f"{boot}:{info.st_dev}:{info.st_ino}"


def _passes_a_link(root: Path, folder: Path) -> bool:
    """Such as `session_latest`, which is a session that is listed under its own name."""
    return any(path.is_symlink() for path in (folder, *folder.parents) if root in path.parents)


def _runs(root: Path) -> Iterator[Path]:
    """Folders that hold steps."""
    for text, folders, _ in os.walk(root, followlinks=False):
        here = Path(text)
        steps = [name for name in folders if STEP.fullmatch(name)]
        if steps:
            yield here
        deep = len(here.relative_to(root).parts) >= _DEPTH
        folders[:] = [] if deep else sorted(set(folders) - {*steps, OURS})


class _Look(NamedTuple):
    """How files are looked at, and those that were found: what is said of each, and where it is."""

    links: bool
    files: List[Tuple[Dict[str, Any], LookedAt]]


def _run(root: Path, folder: Path, look: _Look) -> Dict[str, Any]:
    folders = [entry for entry in _folders(folder, look.links) if STEP.fullmatch(entry.name)]
    steps = [{**_step(entry, look), "is_link": entry.is_symlink()} for entry in folders]
    tracker = folder / TRACKER
    text, info = read_small(tracker, follow_links=look.links), _info(tracker, look.links)
    return {
        "run": str(folder.relative_to(root)),
        "tracker": None if text is None or info is None else {"text": text.strip()[:80], "modified_at": info.st_mtime},
        "steps": sorted(steps, key=lambda step: int(step["step"])),
    }


def _step(folder: Path, look: _Look) -> Dict[str, Any]:
    number = int(folder.name.rpartition("_")[2])
    files, folders = _files(folder, look, deep=False), _folders(folder, look.links)
    without_roles = any(SHARD.fullmatch(file["path"]) for file in files) or any(
        entry.name in FOLDERS for entry in folders
    )
    if without_roles and not any(entry.name in ROLES for entry in folders):
        loader = [file for file in files if OF_LOADER.fullmatch(file["path"])]
        return {"step": number, "files": loader, "roles": [_only_role(folder, look)]}
    return {"step": number, "files": files, "roles": list(_roles(folders, look))}


def _roles(folders: List[Path], look: _Look) -> Iterator[Dict[str, Any]]:
    """Those of a trainer. A user may keep anything else beside them, such as a merged model, or what it scored."""
    for folder in folders:
        mine = _Look(look.links, [])
        role = _role(folder, mine)
        names = [str(file["path"]) for file in role["files"]]
        if names and (folder.name in ROLES or any(map(_is_of_trainer, names))):
            look.files.extend(mine.files)
            yield role


def _is_of_trainer(name: str) -> bool:
    """Whether nothing but a save of shards has a file of this name, below the folder of a role."""
    return bool(SHARD.fullmatch(name)) or is_ours(name) or name == MANIFEST or name.endswith(".distcp")


def scan_only_role(folder: Path, *, follow_links: bool, inspector: Optional[Inspector] = None) -> Dict[str, Any]:
    """What is in a folder of a step without roles, as that of an actor.

    verl's SFT trainer knows none (verl 0.9.1, utils/checkpoint/checkpoint_handler.py, `save_checkpoint`).
    """
    look = _Look(follow_links, [])
    role = _only_role(folder, look)
    _add_evidence(look, inspector)
    return role


def _only_role(folder: Path, look: _Look) -> Dict[str, Any]:
    role = _role(folder, look)
    files = [file for file in role["files"] if not OF_LOADER.fullmatch(file["path"])]
    return {**role, "role": "actor", "folder": "", "files": files}


def _role(folder: Path, look: _Look) -> Dict[str, Any]:
    files = _files(folder, look, deep=True)
    saves = [_record(folder / file["path"], look.links) for file in files if RECORD.fullmatch(file["path"])]
    saves = [save for save in saves if save is not None]
    return {"role": folder.name, "folder": folder.name, "files": files, "saves": saves}


def _folders(folder: Path, links: bool) -> List[Path]:
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=links))
    except OSError:  # a job prunes it just now
        return []


def _files(folder: Path, look: _Look, *, deep: bool) -> List[Dict[str, Any]]:
    """Regular files; with a dot in front Megatron's `.metadata` alone, others are somebody's unfinished business."""
    files, links = [], look.links
    seen = {os.path.realpath(folder)}
    for text, folders, names in os.walk(folder, followlinks=links):
        folders[:] = sorted(name for name in folders if deep and not name.startswith("."))
        if links:  # a link may lead back
            targets = {name: os.path.realpath(os.path.join(text, name)) for name in folders}  # noqa: PTH118
            folders[:] = [name for name in folders if targets[name] not in seen]
            seen |= set(targets.values())
        for name in sorted(names):
            info = _info(Path(text, name), links)
            if info is not None and (not name.startswith(".") or name == ".metadata"):
                whole = os.path.join(text, name)  # noqa: PTH118  Path costs 20 times as much
                path = os.path.relpath(whole, folder)
                file = {"path": path, "size_bytes": info.st_size, "modified_at": info.st_mtime}
                files.append(file)
                look.files.append((file, LookedAt(whole, path, info)))
    return files


def _add_evidence(look: _Look, inspector: Optional[Inspector]) -> None:
    """Say what is to be said of the content of files: nothing of most."""
    if inspector is None:
        return
    evidence = inspector.look_into([place for _, place in look.files])
    for (file, _), (damage, parts) in zip(look.files, evidence):  # noqa: B905  Python 3.9 has no strict
        if damage:
            file["damage"] = damage
        if parts:
            file["parts"] = " ".join(parts)


def _info(path: Path, links: bool) -> Optional[os.stat_result]:
    try:
        info = path.stat() if links else path.lstat()
    except OSError:
        return None
    return info if stat.S_ISREG(info.st_mode) else None


def read_small(path: Path, *, follow_links: bool = False) -> Optional[str]:
    """The text of a small regular file; None for anything else."""
    info = _info(path, follow_links)
    if info is None or info.st_size > _SMALL_BYTES:
        return None
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _record(path: Path, links: bool) -> Optional[Dict[str, Any]]:
    try:
        value = json.loads(read_small(path, follow_links=links) or "")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
