"""A marker file that tells whether two nodes see the same folder, and what a disk that refuses means for a call."""

import contextlib
import errno
import secrets
from pathlib import Path

from cloudrl.protocol.failures import ApiError, ErrorCode


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
    """Where the marker of a run is."""
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
