"""What a job finds in its home and in its working directory: the run's ssh key, and the `files:` of the task.

Source: dstack, runner/internal/runner/executor/executor.go (setupClusterSsh), files.go.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

HOME = "/root"  # every job's user is root


def expand(path: str, base: str) -> str:
    """An absolute path: `~` is the job's home, a relative one starts at `base`."""
    if path == "~" or path.startswith("~/"):
        path = HOME + path[1:]
    return os.path.normpath(os.path.join(base, path))


def write_cluster_key(key: Mapping[str, str], addresses: list[str], ssh_port: int) -> bool:
    """The run's shared key and a configuration that uses it; False, and nothing, below two nodes."""
    if not key or len(addresses) < 2:
        return False
    folder = Path(HOME) / ".ssh"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    private, conf = folder / "dstack_job", folder / "config"
    _write_secret(private, key["private"], os.O_TRUNC)
    _write_secret(conf, "".join(_ssh_entry(address, ssh_port, private) for address in addresses), os.O_APPEND)
    return True


def extract(archive: Path, target: str) -> None:
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
            member.uid, member.gid, member.uname, member.gname = 0, 0, "", ""
            tar.extract(member, base)


def _ssh_entry(address: str, port: int, key: Path) -> str:
    options = (f"Port {port}", "StrictHostKeyChecking no", "UserKnownHostsFile /dev/null", f"IdentityFile {key}")
    return f"\nHost {address}\n" + "".join(f"    {option}\n" for option in options)


def _write_secret(path: Path, text: str, how: int) -> None:
    with open(os.open(path, os.O_CREAT | os.O_WRONLY | how, 0o600), "w") as file:
        file.write(text)
