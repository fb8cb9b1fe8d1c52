"""What a node is: written by the cluster, read by the node's first process (standard library only)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class File:
    """A file that is written when a node starts."""

    text: str
    mode: int = 0o644


@dataclass(frozen=True)
class NodeConfig:
    """One node.

    Attributes:
        name: its host name.
        address: its only IPv4 address, in a network of 24 bits.
        gateway: where packets for elsewhere go; nothing is behind it.
        port: where its main daemon listens; 0 for none.
        cgroup: its control group below those of the machine, in each hierarchy; empty for none.
        users: unprivileged users, name -> number; their homes are /home/NAME.
        binds: (source, target) pairs of folders that several nodes share.
        read_only: the same for folders of the machine that an overlay would hide.
        stores: folders of /var/lib that are on a file system which overlay accepts; all users may write there.
        devices: character devices that look like GPUs.
        files: path -> file.
        commands: run in this order at the start; each ends, daemons in the background.
    """

    name: str
    address: str
    gateway: str
    port: int
    cgroup: str = ""
    users: dict[str, int] = field(default_factory=dict)
    binds: list[tuple[str, str]] = field(default_factory=list)
    read_only: list[tuple[str, str]] = field(default_factory=list)
    stores: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    files: dict[str, File] = field(default_factory=dict)
    commands: list[list[str]] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write it; it may hold keys."""
        path.touch(0o600)
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> NodeConfig:
        """Read what `save` wrote."""
        fields = json.loads(path.read_text())
        files = {name: File(**each) for name, each in fields.pop("files").items()}
        return cls(**fields, files=files)
