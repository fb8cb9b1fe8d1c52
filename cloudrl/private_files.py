"""Folders and files of this user that no other user may enter, read or replace, also in /tmp and /dev/shm.

Standard library only: it travels with the node agent and with the retriever.
"""

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path
from typing import Union

_FOLDER_MODE = 0o700
_FILE_MODE = 0o600


def make_new_folder(folder: Path) -> None:
    """Make a folder with mode 0700, whatever the umask.

    Raises:
        FileExistsError: Something has this name already, maybe a folder or link of another user.
        OSError: The folder cannot be made.
    """
    folder.mkdir(mode=_FOLDER_MODE)
    folder.chmod(_FOLDER_MODE)  # a umask may take rights from the owner, too


def make_folder(folder: Path) -> None:
    """Make sure that a folder exists, belongs to this user and has mode 0700; missing parents are made alike.

    Raises:
        PermissionError: The folder belongs to another user, or one that it is in, see `refuse_foreign`.
        OSError: The folder cannot be made, or something else has its name.
    """
    try:
        if folder.parent.exists():
            refuse_foreign(folder.parent)
        make_new_folder(folder)
    except FileNotFoundError:
        make_folder(folder.parent)
        make_folder(folder)
    except FileExistsError:
        if not folder.is_dir():
            raise
        refuse_foreign(folder)
        if stat.S_IMODE(folder.stat().st_mode) & 0o077:
            folder.chmod(_FOLDER_MODE)


def refuse_foreign(path: Path) -> None:
    """Refuse a file or folder that another user has put in our place, where every user may: below /tmp, for instance.

    Also one within such a folder, whose owner can put another one in its place, whoever has made it.

    Elsewhere the owner says nothing: to root in a container, a mounted folder belongs to a user of the host, and NFS
    gives what root makes to `nobody`.

    Raises:
        PermissionError: The file or folder, or the link to it, belongs to another user, or a folder above it does.
    """
    absolute = path.absolute()
    for place in (absolute, *absolute.parents):
        if place.parent.stat().st_mode & stat.S_IWOTH:
            for owner in (place.lstat().st_uid, place.stat().st_uid):
                if owner not in (0, os.geteuid()):
                    raise PermissionError(errno.EPERM, f"it belongs to another user (uid {owner})", str(place))


def write_file(path: Path, content: Union[str, bytes], *, mode: int = _FILE_MODE, sync: bool = False) -> None:
    """Write a file whole or not at all; what has its name is replaced, and no link is followed.

    Args:
        path: The file; its folder exists.
        content: Text is written as UTF-8.
        mode: Permissions, less those of the umask. By default only this user can read the file.
        sync: The disk has the file when this returns. Without it, a loss of power may leave the file empty.

    Raises:
        OSError: The file cannot be written. What was there is unchanged.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(part, flags, mode), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    if sync:
        sync_to_disk(path.parent)


def open_file(path: Union[str, Path], flags: int) -> int:
    """Open a file of ours and return its descriptor; a new one has mode 0600. An `opener` for `open`.

    Raises:
        PermissionError: The file belongs to another user.
        OSError: The file cannot be opened, or it is a link.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE)
    try:
        refuse_foreign(Path(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def sync_to_disk(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder, for which some file systems have no such call."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError) if path.is_dir() else contextlib.nullcontext():
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
