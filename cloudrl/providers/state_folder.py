"""The folder in which this machine keeps what it knows of clusters."""

import os
from pathlib import Path

from cloudrl.errors import InputError
from cloudrl.private_files import make_folder

_OTHER_HOME_HINT = "Its place is $CLOUDRL_HOME, by default ~/.cloudrl: export CLOUDRL_HOME=/another/folder"


def home() -> Path:
    """Where this machine keeps what it knows of clusters: `$CLOUDRL_HOME`, by default `~/.cloudrl`."""
    return Path(os.environ.get("CLOUDRL_HOME") or "~/.cloudrl").expanduser().absolute()


def make_state_folder(folder: Path) -> None:
    """Make a folder of this machine's state, below `home()`, which only this user can enter.

    Raises:
        InputError: It cannot be made or written to, or it belongs to another user.
    """
    try:
        make_folder(folder)
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be made: {error.strerror}", hint=_OTHER_HOME_HINT) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"the folder {folder} cannot be written to by this user", hint=_OTHER_HOME_HINT)
