"""Acts by the name that it was called by, as busybox does."""

from __future__ import annotations

import os
import sys
from importlib import import_module

_ROLES = {
    "host-init": ("host", "host_init"),
    "container-init": ("container", "container_init"),
    "docker-proxy": ("bridge", "docker_proxy"),
    "systemctl": ("systemctl", "systemctl"),
    "dstack-shim": ("shim", "main"),
    "dstack-runner": ("runner", "main"),
}


def main(argv: list[str]) -> int:
    """The exit status; `argv[0]` decides unless the file goes by its own name.

    Each role imports only its own modules: provisioning calls these programs a dozen times.
    """
    role, words = os.path.basename(argv[0]), argv[1:]
    if role.endswith(".pyz"):
        role, words = words[0], words[1:]
    if words == ["--version"]:
        from .config import HostConfig

        print(role, "version", HostConfig.load().version)
        return 0
    if role not in _ROLES:
        print(f"{role}: not one of this program's names", file=sys.stderr)
        return 2
    module, function = _ROLES[role]
    return int(getattr(import_module(f".{module}", __package__), function)(words))
