"""The files of a script's project, as a sandbox gets them: what a shell may read, and empty files for the rest."""

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath

_READ = frozenset(
    [
        ".sh",
        ".bash",
        ".zsh",
        ".slurm",
        ".sbatch",
        ".env",
        ".yaml",
        ".yml",
        ".json",
        ".txt",
        ".cfg",
        ".conf",
        ".toml",
        ".ini",
        ".list",
        ".csv",
        ".py",
        ".source",
        ".inc",
    ]
)
"""Endings of files that scripts read; those without one are read, too."""
_SKIPPED = frozenset({".git", ".hg", "node_modules", "__pycache__", ".venv", "venv", "wandb", ".mypy_cache", ".tox"})
_FILE_BYTES, _ALL_BYTES, _ENTRIES = 128 << 10, 12 << 20, 6000
_HERE = 0o644


@dataclass(frozen=True)
class Project:
    """A folder of this machine with the script in it.

    Attributes:
        root: The checkout of git that the script is in, or else its folder. Absolute.
        folders: Its folders.
        contents: Path -> content and mode; empty for a file that a shell does not read.
        is_whole: Whether the folder has no more files than were looked at.
    """

    root: Path
    folders: tuple[str, ...] = ()
    contents: Mapping[str, tuple[bytes, int]] = field(default_factory=dict, repr=False)
    is_whole: bool = True

    def holds(self, path: str) -> bool:
        """Whether an absolute path is that of a file or folder of the project."""
        return path in self.contents or path in self.folders


def find_root(script: Path, here: Path) -> Path:
    """The folder whose files a script may name: of the nearest checkout of git, the current one, or its own."""
    folder = script.parent
    for each in (folder, *folder.parents):
        if (each / ".git").exists():
            return each
    return here if folder.is_relative_to(here) else folder


def read_project(script: Path, here: Path, *, home: Path) -> Project:
    """Look at the project of a script.

    Of a home folder, or one above it, only the files beside the script are taken: everything else there is private.

    Args:
        script: Its absolute path.
        here: The current folder.
        home: The user's home folder.
    """
    root = find_root(script, here)
    if home.is_relative_to(root):
        root = script.parent
    folders, contents, left, seen = [str(root)], dict[str, tuple[bytes, int]](), _ALL_BYTES, 0
    for entry, is_folder in _walk(root, deep=not home.is_relative_to(root)):
        seen += 1
        if seen > _ENTRIES:
            return Project(root, tuple(folders), contents, is_whole=False)
        if is_folder:
            folders.append(entry.path)
            continue
        content, mode = _content(entry, root, left)
        left -= len(content)
        contents[entry.path] = content, mode
    return Project(root, tuple(folders), contents)


def _walk(folder: Path | str, *, deep: bool) -> Iterator[tuple["os.DirEntry[str]", bool]]:
    """Breadth first, so that what is near comes before the limit."""
    waiting = [folder]
    while waiting:
        try:
            entries = sorted(os.scandir(waiting.pop(0)), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder and (not deep or entry.name in _SKIPPED):
                continue
            yield entry, is_folder
            if is_folder:
                waiting.append(entry.path)


def _content(entry: "os.DirEntry[str]", root: Path, left: int) -> tuple[bytes, int]:
    try:
        info = entry.stat()
        mode = _HERE | (stat.S_IMODE(info.st_mode) & 0o111)
        name, ending = entry.name, PurePath(entry.name).suffix
        is_read = (ending in _READ or not ending or name.startswith(".env")) and info.st_size <= min(_FILE_BYTES, left)
        leads_out = entry.is_symlink() and not Path(entry.path).resolve().is_relative_to(root.resolve())
        if ending == ".py" or not is_read or leads_out or not stat.S_ISREG(info.st_mode):
            return b"", mode
        with Path(entry.path).open("rb") as file:
            return file.read(_FILE_BYTES), mode
    except OSError:
        return b"", _HERE
