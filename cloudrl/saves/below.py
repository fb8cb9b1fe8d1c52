"""Reading below one folder, and nowhere else.

Every path is opened component by component with openat(2) and O_NOFOLLOW, starting at the folder's own
descriptor: `..`, absolute paths and links are refused by construction, and nothing can be swapped between
a check and the opening.
"""

import os
import stat
from pathlib import Path
from typing import BinaryIO


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
    folder, _, name = relative.rpartition("/")
    if not _is_inside(relative):
        raise Refused(relative)
    descriptor = _step(open_folder_below(root, folder), name, 0, relative)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refused(relative)
    return os.fdopen(descriptor, "rb")


def open_folder_below(root: Path, relative: str) -> int:
    """Open a folder below `root`, or itself for an empty path; returns its descriptor.

    Raises:
        Refused: see the class.
        FileNotFoundError: there is no such folder.
    """
    if relative and not _is_inside(relative):
        raise Refused(relative)
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for part in relative.split("/") if relative else ():
        descriptor = _step(descriptor, part, os.O_DIRECTORY, relative)
    return descriptor


def _is_inside(relative: str) -> bool:
    return "\0" not in relative and not any(part in ("", ".", "..") for part in relative.split("/"))


def _step(descriptor: int, part: str, kind: int, relative: str) -> int:
    """One component further; the descriptor that it started from is closed."""
    try:
        return os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | kind, dir_fd=descriptor)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # ELOOP for a link, ENOTDIR for a file in the middle, EACCES
        raise Refused(relative) from error
    finally:
        os.close(descriptor)
