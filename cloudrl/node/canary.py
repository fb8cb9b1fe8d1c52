"""Do two nodes see the same folder? Rank 0 leaves a file with a random word, the others look for it."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def path(folder: Path, run_id: str) -> Path:
    """Where the canary of a run lies."""
    return folder / f".cloudrl-canary-{run_id}"


def leave(folder: Path, run_id: str) -> str:
    """Write the canary into `folder` (made when missing) and return its word."""
    folder.mkdir(parents=True, exist_ok=True)
    word = secrets.token_hex(8)
    path(folder, run_id).write_text(word)
    return word


def seen(folder: Path, run_id: str, word: str) -> bool:
    """Whether `folder` holds the canary with this word, which means that it is rank 0's folder."""
    try:
        return path(folder, run_id).read_text() == word
    except OSError:
        return False


def take_away(folder: Path, run_id: str) -> None:
    """Remove the canary; rank 0 does so once the cluster is ready, or has failed. No cluster ends for its sake."""
    with contextlib.suppress(OSError):
        path(folder, run_id).unlink()
