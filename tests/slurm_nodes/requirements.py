"""What a Slurm cluster on this machine needs of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from dstack_hosts import requirements as hosts

_PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
    "setpriv": "util-linux",
    "dockerd": "docker.io",
    "iptables": "iptables",
    "podman": "podman",
    "runc": "runc",
    "netavark": "netavark",
    "newuidmap": "uidmap",
    "fuse-overlayfs": "fuse-overlayfs",
    "slirp4netns": "slirp4netns",
    "shellcheck": "shellcheck",
}
_PLUGINS = {
    "proctrack_cgroup.so": "slurm-wlm-basic-plugins",
    "accounting_storage_mysql.so": "slurm-wlm-mysql-plugin",
}


def missing_packages() -> list[str]:
    """Debian packages whose programs are not there."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/lib/podman"
    missing = {package for program, package in _PROGRAMS.items() if shutil.which(program, path=path) is None}
    missing |= {
        package for plugin, package in _PLUGINS.items() if not list(Path("/usr/lib").glob(f"*/slurm-wlm/{plugin}"))
    }
    return sorted({*missing, *hosts.missing_packages()})


def why_not() -> str:
    """Why this machine cannot run a cluster; "" when it can."""
    if os.geteuid() != 0:
        return "Slurm's test nodes need root (network namespaces, mounts)"
    packages = missing_packages()
    if packages:
        return f"Slurm's test nodes need programs of {', '.join(packages)}: apt-get install {' '.join(packages)}"
    return hosts.kernel_refuses("Slurm's test nodes need")
