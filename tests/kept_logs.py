"""An archive of logs, as agents leave it."""

import gzip
import os
from pathlib import Path

from cloudrl.saves.archive import FOLDER, Piece

SESSION = "session_2026-11-23_09-26-11_123456_42"


def keep(
    checkpoints: Path, path: str, *members: bytes, run: str = "run-1", rank: int = 0, number: int = 0, at: float = 1000
) -> Path:
    """Write a piece as an agent does, its members ten seconds after each other."""
    file = checkpoints / FOLDER / Piece(run, rank, SESSION, path, number).where
    file.parent.mkdir(parents=True, exist_ok=True)
    times = [at + 10 * index for index in range(len(members))]
    file.write_bytes(b"".join(gzip.compress(each, mtime=when) for each, when in zip(members, times, strict=True)))
    os.utime(file, (times[-1], times[-1]))
    return file
