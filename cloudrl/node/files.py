"""Reading below one folder, and nowhere else.

Every path is opened component by component with openat(2) and O_NOFOLLOW, starting at the folder's own
descriptor: `..`, absolute paths and links are refused by construction, and nothing can be swapped between
a check and the opening.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, Dict, List


class Refused(Exception):
    """The path leaves the folder, passes a link, or names no regular file."""


def open_below(root: Path, relative: str) -> BinaryIO:
    """Open a regular file below `root` for reading.

    Args:
        root: the folder; may itself be reached over links.
        relative: `/`-separated path below it, already percent-decoded once.

    Raises:
        Refused: see the class.
        FileNotFoundError: there is no such file.
    """
    parts = relative.split("/")
    if not relative or "\0" in relative or any(part in ("", ".", "..") for part in parts):
        raise Refused(relative)
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for index, part in enumerate(parts):
        flags = (
            os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_DIRECTORY if index + 1 < len(parts) else 0)
        )
        try:
            inner = os.open(part, flags, dir_fd=descriptor)
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:  # ELOOP for a link, ENOTDIR for a file in the middle, EACCES
            raise Refused(relative) from error
        finally:
            os.close(descriptor)
        descriptor = inner
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refused(relative)
    return os.fdopen(descriptor, "rb")


def list_below(root: Path) -> List[Dict[str, Any]]:
    """All regular files below `root` as {path, size_bytes, modified_at}, sorted by path; links are left out."""
    found = []
    for folder, folders, names in os.walk(root, followlinks=False):
        folders.sort()
        for name in names:
            path = Path(folder, name)
            try:
                info = os.lstat(path)
            except FileNotFoundError:
                continue  # a job is pruning old checkpoints
            if stat.S_ISREG(info.st_mode):
                relative = os.path.relpath(path, root)
                found.append({"path": relative, "size_bytes": info.st_size, "modified_at": info.st_mtime})
    return sorted(found, key=lambda entry: str(entry["path"]))
