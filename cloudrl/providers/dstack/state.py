"""What this machine keeps of each dstack cluster: the task that was sent, the way there, the tunnel in the background.

~/.cloudrl/dstack/PROJECT/NAME/
    NAME.dstack.yml, cloudrl-node.pyz    what `up` has sent
    ssh_config, ssh.log                  the tunnel of the last command
    tunnel/                              the tunnel that `up` and `attach` keep open: tunnel.json, lock, log
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO


def root() -> Path:
    """`$CLOUDRL_HOME/dstack`, by default below `~/.cloudrl`."""
    return Path(os.environ.get("CLOUDRL_HOME") or "~/.cloudrl").expanduser().absolute() / "dstack"


def folder(project: str, name: str) -> Path:
    """The folder of one cluster."""
    return root() / project / name


@dataclass(frozen=True)
class Kept:
    """A tunnel that another process keeps open. Ports are local."""

    pid: int
    run_id: str
    ray_port: int
    agent_port: int


def hold(place: Path) -> IO[str] | None:
    """Take the tunnel's lock for the life of the returned file; None when another process has it."""
    place.mkdir(parents=True, exist_ok=True)
    file = (place / "lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def is_held(place: Path) -> bool:
    """Whether another process has the tunnel's lock."""
    lock = hold(place)
    if lock is not None:
        lock.close()
    return lock is None


def write_kept(place: Path, kept: Kept) -> None:
    """Say that a tunnel is there; it counts as long as its keeper holds the lock."""
    part = place / ".tunnel.json"
    part.write_text(json.dumps(asdict(kept)), encoding="utf-8")
    part.replace(place / "tunnel.json")


def read_kept(place: Path) -> Kept | None:
    """The tunnel that is kept open here; None when its keeper is gone, however it ended."""
    if not (place / "lock").exists():
        return None
    lock = hold(place)
    if lock is not None:
        lock.close()
        (place / "tunnel.json").unlink(missing_ok=True)
        return None
    try:
        return Kept(**json.loads((place / "tunnel.json").read_text(encoding="utf-8")))
    except FileNotFoundError:  # it is opening
        return None
