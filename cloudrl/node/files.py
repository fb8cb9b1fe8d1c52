"""Reading below one folder, and nowhere else; and a marker file that tells whether two nodes see the same folder.

Every path is opened component by component with openat(2) and O_NOFOLLOW, starting at the folder's own
descriptor: `..`, absolute paths and links are refused by construction, and nothing can be swapped between
a check and the opening.
"""

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path
from typing import BinaryIO

from cloudrl.protocol.failures import ApiError, ErrorCode


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


def disk_refusal(error: OSError, what: str) -> ApiError:
    """How to refuse a call when the disk or the memory of this node refuses to do its part.

    Args:
        error: What the system said.
        what: The file or folder; may be empty.
    """
    reason = f"{what}: {error.strerror or error}" if what else error.strerror or str(error)
    # the only one of these errors that is the caller's
    return ApiError(ErrorCode.BAD_REQUEST if error.errno == errno.ENAMETOOLONG else ErrorCode.NO_SPACE, reason)


def marker_path(folder: Path, run_id: str) -> Path:
    """Where the marker of a run lies."""
    return folder / f".cloudrl-marker-{run_id}"


def write_marker(folder: Path, run_id: str) -> str:
    """Write the marker into `folder` (made when missing) and return its text, for which the other nodes look."""
    folder.mkdir(parents=True, exist_ok=True)
    text = secrets.token_hex(8)
    marker_path(folder, run_id).write_text(text)
    return text


def has_marker(folder: Path, run_id: str, text: str) -> bool:
    """Whether `folder` holds the marker with this text, which means that it is rank 0's folder."""
    try:
        return marker_path(folder, run_id).read_text() == text
    except OSError:
        return False


def remove_marker(folder: Path, run_id: str) -> None:
    """Remove the marker; rank 0 does so once the cluster is ready, or has failed. No cluster ends for its sake."""
    with contextlib.suppress(OSError):
        marker_path(folder, run_id).unlink()
