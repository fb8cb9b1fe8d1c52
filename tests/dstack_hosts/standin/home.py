"""What a job finds in its home and in its working directory: the run's ssh key, and the `files:` of the task.

Source: dstack, runner/internal/runner/executor/executor.go (setupClusterSsh), user.go, files.go.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class JobUser:
    """Whose processes the job's are."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str


def job_user(spec: Mapping[str, Any]) -> JobUser:
    """The user of the job; without one, root. An unknown id has no name, the home `/` and the group root.

    A group that is named is the only one.

    Raises:
        LookupError: an unknown name.
    """
    user: dict[str, Any] = spec.get("user") or {"uid": 0}
    known = _account(user)
    gid = _group(user)
    if gid is not None:
        groups = {gid}
    else:
        gid = known.pw_gid if known else 0
        groups = set(os.getgrouplist(known.pw_name, gid)) if known else {gid}
    uid = known.pw_uid if known else int(user["uid"])
    home = known.pw_dir if known and _is_home(known.pw_dir) else "/"
    return JobUser(uid, gid, tuple(sorted(groups)), known.pw_name if known else "", home)


def _account(user: Mapping[str, Any]) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(int(user["uid"])) if user.get("uid") is not None else pwd.getpwnam(user["username"])
    except KeyError:
        if user.get("uid") is not None:
            return None
        raise LookupError(f"lookup user by name: user: unknown user {user['username']}") from None


def _group(user: Mapping[str, Any]) -> int | None:
    if user.get("gid") is not None:
        return int(user["gid"])
    if user.get("groupname") is None:
        return None
    try:
        return grp.getgrnam(user["groupname"]).gr_gid
    except KeyError:
        raise LookupError(f"lookup group by name: group: unknown group {user['groupname']}") from None


def _is_home(path: str) -> bool:
    if os.path.exists(path):
        return os.path.isabs(path) and os.path.isdir(path)
    return os.path.isabs(path) and "nonexistent" not in path


def expand(path: str, base: str, home: str) -> str:
    """An absolute path: `~` is the job user's home, a relative one starts at `base`."""
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    return os.path.normpath(os.path.join(base, path))


def write_cluster_key(user: JobUser, key: Mapping[str, str], addresses: list[str], ssh_port: int) -> bool:
    """The run's shared key and a configuration that uses it; False, and nothing, below two nodes or without a home."""
    if not key or len(addresses) < 2 or user.home == "/":
        return False
    folder = Path(user.home) / ".ssh"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    private, conf = folder / "dstack_job", folder / "config"
    _write_secret(private, key["private"], os.O_TRUNC)
    _write_secret(conf, "".join(_ssh_entry(address, ssh_port, private) for address in addresses), os.O_APPEND)
    for path in (folder, private, conf):
        os.chown(path, user.uid, user.gid)
    return True


def extract(archive: Path, target: str, user: JobUser) -> None:
    """Unpack one entry of `files:`; the first part of each name in it becomes the target's own name.

    What is at the target is removed first. Raises OSError or tarfile.TarError.
    """
    base, name = os.path.split(target)
    os.makedirs(base, exist_ok=True)
    if os.path.isdir(target):
        shutil.rmtree(target)
    elif os.path.lexists(target):
        os.unlink(target)
    with tarfile.open(archive) as tar:
        for member in tar:
            member.name = re.sub(r"^([^/]*)(/|$)", lambda match: name + match[2], member.name, count=1)
            tar.extract(member, base)
            os.chown(os.path.join(base, member.name), user.uid, user.gid)


def _ssh_entry(address: str, port: int, key: Path) -> str:
    options = (f"Port {port}", "StrictHostKeyChecking no", "UserKnownHostsFile /dev/null", f"IdentityFile {key}")
    return f"\nHost {address}\n" + "".join(f"    {option}\n" for option in options)


def _write_secret(path: Path, text: str, how: int) -> None:
    with open(os.open(path, os.O_CREAT | os.O_WRONLY | how, 0o600), "w") as file:
        file.write(text)
