"""What a job finds in its home and in its working directory: the run's ssh key, and the `files:` of the task.

Source: dstack, runner/internal/runner/executor/executor.go (setupClusterSsh), files.go.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def job_user(spec: Mapping[str, Any]) -> pwd.struct_passwd:
    """The user of the job: by id, by name, or root. An unknown id has no name and the home `/`, as in Docker.

    Raises:
        KeyError: an unknown name.
    """
    user: dict[str, Any] = spec.get("user") or {}
    if user.get("uid") is not None:
        number = int(user["uid"])
        known = {each.pw_uid: each for each in pwd.getpwall()}
        return known.get(number, pwd.struct_passwd(("", "x", number, number, "", "/", "/bin/sh")))
    if user.get("username") is not None:
        return pwd.getpwnam(user["username"])
    return pwd.getpwuid(0)


def expand(path: str, base: str, home: str) -> str:
    """An absolute path: `~` is the job user's home, a relative one starts at `base`."""
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    return os.path.normpath(os.path.join(base, path))


def write_cluster_key(user: pwd.struct_passwd, key: Mapping[str, str], addresses: list[str], ssh_port: int) -> bool:
    """The run's shared key and a configuration that uses it; False, and nothing, below two nodes or without a home."""
    if not key or len(addresses) < 2 or user.pw_dir == "/":
        return False
    folder = Path(user.pw_dir) / ".ssh"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    private, conf = folder / "dstack_job", folder / "config"
    _write_secret(private, key["private"], os.O_TRUNC)
    _write_secret(conf, "".join(_ssh_entry(address, ssh_port, private) for address in addresses), os.O_APPEND)
    for path in (folder, private, conf):
        os.chown(path, user.pw_uid, user.pw_gid)
    return True


def extract(archive: Path, target: str, user: pwd.struct_passwd) -> None:
    """Unpack one entry of `files:`; the first part of each name in it becomes the target's own name.

    What lies at the target is removed first. Raises OSError or tarfile.TarError.
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
            os.chown(os.path.join(base, member.name), user.pw_uid, user.pw_gid)


def _ssh_entry(address: str, port: int, key: Path) -> str:
    options = (f"Port {port}", "StrictHostKeyChecking no", "UserKnownHostsFile /dev/null", f"IdentityFile {key}")
    return f"\nHost {address}\n" + "".join(f"    {option}\n" for option in options)


def _write_secret(path: Path, text: str, how: int) -> None:
    with open(os.open(path, os.O_CREAT | os.O_WRONLY | how, 0o600), "w") as file:
        file.write(text)
