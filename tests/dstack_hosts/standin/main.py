"""Acts by the name that it was called by, as busybox does."""

from __future__ import annotations

import os
import sys


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
    return _act(role, words)


def _act(role: str, words: list[str]) -> int:
    if role == "host-init":
        from .host import host_init

        return host_init(*words)
    if role == "container-init":
        from .container import container_init

        return container_init(*words)
    if role == "systemctl":
        from .systemctl import systemctl

        return systemctl(words)
    if role == "dstack-shim":
        from . import shim

        return shim.main()
    if role == "dstack-runner":
        from . import runner

        return runner.main(words)
    print(f"{role}: not one of this program's names", file=sys.stderr)
    return 2
