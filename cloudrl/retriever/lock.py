"""One build or fetch at a time in a folder."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from cloudrl.errors import InputError
from cloudrl.private_files import open_file, refuse_foreign

_LOCK = ".lock"
"""A file: over NFS, an exclusive lock needs what is open for writing (flock(2)), and a folder never is."""
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""As Lustre answers unless it is mounted with `flock` (mount.lustre(8))."""


@contextlib.contextmanager
def locked(folder: Path, say: Callable[[str], object] = lambda _: None) -> Iterator[None]:
    """Make the folder, and keep others out of it; one that is at work there is waited for.

    Args:
        folder: to be written.
        say: gets a line when it has to wait for another process.

    Raises:
        InputError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        refuse_foreign(folder)
        lock = open_file(folder / _LOCK, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another build or fetch writes into {folder}; waiting for its end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            say(f"the file system of {folder} has no locks: only one build or fetch may write there at a time")
        yield
    finally:
        os.close(lock)


def contents(folder: Path) -> list[Path]:
    """What is in a folder, the lock aside."""
    return [path for path in folder.iterdir() if path.name != _LOCK]
