"""OpenSSH's server, of a host and of a container."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

_PROGRAM = "/usr/sbin/sshd"
_COMMON = (
    "PidFile none",
    "Subsystem sftp internal-sftp",
    "PasswordAuthentication no",
    "KbdInteractiveAuthentication no",
)


def make_host_keys(folder: Path, kinds: Iterable[str]) -> None:
    """New host keys in `folder`, one of each kind."""
    for kind in kinds:
        path = folder / f"ssh_host_{kind}_key"
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(path)], check=True, timeout=30)


def start(folder: Path, lines: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start it with the host keys that are in `folder`, where its configuration is written too."""
    os.makedirs("/run/sshd", 0o755, exist_ok=True)
    keys = [f"HostKey {key}" for key in sorted(folder.glob("ssh_host_*_key"))]
    conf = folder / "sshd_config"
    conf.write_text("\n".join([*_COMMON, *lines, *keys]) + "\n")
    return subprocess.Popen([_PROGRAM, "-D", "-f", str(conf), "-E", str(log)])
