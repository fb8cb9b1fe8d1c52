"""What a lab needs of the machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess

_PROGRAMS = {
    "/usr/sbin/sshd": "openssh-server",
    "ssh": "openssh-client",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "/usr/bin/setpriv": "util-linux",
    "curl": "curl",
    "mount": "mount",
    "dash": "dash",
}
_TRY = """set -e
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
ip link add probe type bridge
"""


def missing_packages() -> list[str]:
    """Debian packages whose programs are not there."""
    return sorted({package for program, package in _PROGRAMS.items() if shutil.which(program) is None})


def why_not() -> str:
    """Why this machine cannot run a lab; "" when it can."""
    if os.geteuid() != 0:
        return "a dstack lab needs root (network namespaces, mounts): sudo make dstack-lab"
    packages = missing_packages()
    if packages:
        return f"a dstack lab needs programs of {', '.join(packages)}: apt-get install {' '.join(packages)}"
    if importlib.util.find_spec("sqlalchemy") is None:
        return "a dstack lab needs the dstack server: pip install 'dstack[server]'"
    return kernel_refuses("a dstack lab needs")


def kernel_refuses(who_needs: str) -> str:
    """Why this kernel refuses what a host is made of; "" when it does not."""
    words = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--", "sh", "-c", _TRY]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode == 0:
        return ""
    return f"{who_needs} namespaces, overlayfs and bridges, which this kernel refuses: {done.stderr.strip()}"
