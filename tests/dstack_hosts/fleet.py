"""SSH fleets of a lab's hosts."""

from __future__ import annotations

import subprocess
import time
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from .lab import Lab


def fleet_yaml(name: str, addresses: list[str], key: Path) -> str:
    """What `dstack apply -f` makes a fleet of."""
    hosts = "".join(f"    - {address}\n" for address in addresses)
    return (
        f"type: fleet\nname: {name}\nplacement: cluster\nssh_config:\n"
        f"  user: root\n  identity_file: {key}\n  hosts:\n{hosts}"
    )


def make_key(path: Path) -> None:
    """The key that the fleet's owner reaches the hosts with."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True, timeout=30)


def create(lab: Lab, path: Path, name: str, hosts: int, timeout_s: float) -> None:
    """Apply a fleet's file and wait until all its hosts are idle. Raises TimeoutError with the CLI's words."""
    deadline = time.monotonic() + timeout_s
    done = lab.run("dstack", "apply", "-y", "-d", "-f", path.name, cwd=path.parent, timeout_s=timeout_s)
    while done.returncode == 0 and time.monotonic() < deadline:
        if statuses(lab, name) == ["idle"] * hosts:
            return
        time.sleep(0.1)
    raise TimeoutError(f"fleet {name} of {hosts} hosts is not idle:\n{done.stdout}")


def statuses(lab: Lab, name: str) -> list[str]:
    """Of a fleet's hosts."""
    found = lab.server.call("/api/project/main/fleets/get", {"name": name})
    return [str(instance["status"]) for instance in found["instances"]]


def dstack_version() -> str:
    """Of the installed dstack, which the hosts must equal."""
    return metadata.version("dstack")
