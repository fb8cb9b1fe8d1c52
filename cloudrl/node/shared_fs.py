"""Do two nodes see the same folder? Rank 0 writes a marker file with random text, the others look for it."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path


def marker_path(folder: Path, run_id: str) -> Path:
    """Where the marker of a run lies."""
    return folder / f".cloudrl-marker-{run_id}"


def write_marker(folder: Path, run_id: str) -> str:
    """Write the marker into `folder` (made when missing) and return its text."""
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
