"""What lies in a folder of checkpoints: runs, their steps, the roles of each, and the files of each role.

The layout is verl's (`cloudrl.saves.names`). Nothing of a checkpoint is opened but its tracker and the records of its
saves.
"""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

from cloudrl.saves.names import RECORD, STEP, TRACKER

IN_WORKING_DIR = re.compile(r"session_[^/]+/runtime_resources/working_dir_files/[^/]+/checkpoints(/.*)?", re.DOTALL)
"""Below Ray's folder: where a job with a relative `trainer.default_local_dir` has left its checkpoints."""
_DEPTH = 12
_SMALL_BYTES = 1 << 20


def scan(root: Path) -> List[Dict[str, Any]]:
    """All runs below a folder, in the order of their paths; links are not followed.

    Returns:
        [{"run": path below `root`, "tracker": {"text", "modified_at"} or None, "steps": [{"step", "files", "roles":
        [{"role", "files", "saves"}]}]}]; `files` are {"path", "size_bytes", "modified_at"}, paths relative to step or
        role; `saves` are its records of saves.
    """
    return sorted((_run(root, folder) for folder in _runs(root)), key=lambda run: str(run["run"]))


def scan_working_dirs(ray_root: Path) -> List[Dict[str, Any]]:
    """The same of what earlier jobs have left in their working directories below Ray's folder."""
    found = []
    for folder in sorted(ray_root.glob("session_*/runtime_resources/working_dir_files/*/checkpoints")):
        if IN_WORKING_DIR.fullmatch(str(folder.relative_to(ray_root))) and not _passes_a_link(ray_root, folder):
            prefix = folder.relative_to(ray_root)
            found += [{**run, "run": str(prefix / run["run"])} for run in scan(folder)]
    return found


def folder_identity(folder: Path) -> str:
    """The same text for the same folder within one kernel, also from two containers; "" where there is none."""
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
        folders[:] = [] if deep else sorted(set(folders) - set(steps))


def _run(root: Path, folder: Path) -> Dict[str, Any]:
    steps = [_step(each) for each in _folders(folder) if STEP.fullmatch(each.name)]
    tracker = folder / TRACKER
    text, info = read_small(tracker), _info(tracker)
    return {
        "run": str(folder.relative_to(root)),
        "tracker": None if text is None or info is None else {"text": text.strip()[:80], "modified_at": info.st_mtime},
        "steps": sorted(steps, key=lambda step: int(step["step"])),
    }


def _step(folder: Path) -> Dict[str, Any]:
    roles = [_role(each) for each in _folders(folder)]
    return {
        "step": int(folder.name.rpartition("_")[2]),
        "files": _files(folder, deep=False),
        "roles": [role for role in roles if role["files"]],
    }


def _role(folder: Path) -> Dict[str, Any]:
    files = _files(folder, deep=True)
    saves = [_record(folder / file["path"]) for file in files if RECORD.fullmatch(file["path"])]
    return {"role": folder.name, "files": files, "saves": [save for save in saves if save is not None]}


def _folders(folder: Path) -> List[Path]:
    try:
        return sorted(Path(each.path) for each in os.scandir(folder) if each.is_dir(follow_symlinks=False))
    except OSError:  # a job prunes it just now
        return []


def _files(folder: Path, *, deep: bool) -> List[Dict[str, Any]]:
    """Regular files; with a dot in front Megatron's `.metadata` alone, others are somebody's unfinished business."""
    found = []
    for text, folders, names in os.walk(folder, followlinks=False):
        folders[:] = sorted(name for name in folders if deep and not name.startswith("."))
        for name in sorted(names):
            info = _info(Path(text, name))
            if info is not None and (not name.startswith(".") or name == ".metadata"):
                path = os.path.relpath(os.path.join(text, name), folder)  # noqa: PTH118  Path costs 20 times as much
                found.append({"path": path, "size_bytes": info.st_size, "modified_at": info.st_mtime})
    return found


def _info(path: Path) -> Optional[os.stat_result]:
    try:
        info = path.lstat()
    except OSError:
        return None
    return info if stat.S_ISREG(info.st_mode) else None


def read_small(path: Path) -> Optional[str]:
    """The text of a small regular file; None for anything else."""
    info = _info(path)
    if info is None or info.st_size > _SMALL_BYTES:
        return None
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _record(path: Path) -> Optional[Dict[str, Any]]:
    try:
        value = json.loads(read_small(path) or "")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
