"""One build or fetch at a time in a folder."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from cloudrl.errors import InputError


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make the folder, and keep others out of it.

    Raises:
        InputError: it cannot be written, or another is at work there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"another build or fetch writes into {folder}", hint="Name a new folder: --to") from error
        yield
    finally:
        os.close(lock)
